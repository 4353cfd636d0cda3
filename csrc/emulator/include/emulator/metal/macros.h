#pragma once

// Macros of Apple's compiler and headers. The language version comes from the command line
// (-D__METAL_VERSION__=400), like there from -std; feature macros follow it (the table of a probe
// of metal 32023.921: tensors from 4.0, multi-plane tensors and the 2-bit and fp formats from 4.1).

static_assert(static_cast<char>(-1) < 0, "char is signed in Metal: compile with -fsigned-char");

#define __METAL__ 1
#define METAL_FUNC inline
#define METAL_INTERNAL inline
#define METAL_CONST constexpr

#ifndef __METAL_VERSION__
#define __METAL_VERSION__ 400
#endif
#define __HAVE_BFLOAT__ 1
#if __METAL_VERSION__ >= 400
#define __HAVE_TENSOR__ 1
#define __HAVE_INT4B_FORMAT_TYPE__ 1
#endif
#if __METAL_VERSION__ >= 410
#define __HAVE_TENSOR_MULTIPLANE__ 1
#define __HAVE_INT2B_FORMAT_TYPE__ 1
#define __HAVE_FP4_E2M1_FORMAT_TYPE__ 1
#define __HAVE_FP8_E4M3_FORMAT_TYPE__ 1
#define __HAVE_FP8_E5M2_FORMAT_TYPE__ 1
#define __HAVE_FP8_UE8M0_FORMAT_TYPE__ 1
#define __HAVE_TENSOR_GET_STRIDE_BYTES__ 1
#endif

// Arguments of the math builtins; there is one kind of math here.
#define __METAL_FAST_MATH__ 1
#define __METAL_MAYBE_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 0
