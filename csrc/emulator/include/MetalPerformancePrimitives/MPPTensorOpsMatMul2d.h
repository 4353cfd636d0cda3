#pragma once

#include "MetalPerformancePrimitives/MetalPerformancePrimitives.h"
