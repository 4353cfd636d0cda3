// metal-cpp passes this type through by pointer only.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
