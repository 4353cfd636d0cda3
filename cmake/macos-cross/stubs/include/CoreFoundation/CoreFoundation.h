// The few declarations that metal-cpp names; written for this project, not taken from an SDK.
#pragma once

#include <TargetConditionals.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef const void* CFTypeRef;
typedef const struct __CFString* CFStringRef;
typedef double CFTimeInterval;
typedef double CFAbsoluteTime;
typedef signed long CFIndex;

CFStringRef __CFStringMakeConstantString(const char* text);

#ifdef __cplusplus
}
#endif
