// What CPython's public headers ask of the platform, answered for macOS arm64 (LP64, pthreads).
// Written for this project; it replaces the build machine's own pyconfig.h in a copy of its
// headers.
#ifndef Py_PYCONFIG_H
#define Py_PYCONFIG_H
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_LONG 8
#define SIZEOF_LONG_LONG 8
#define SIZEOF_INT 4
#define SIZEOF_SHORT 2
#define SIZEOF_FLOAT 4
#define SIZEOF_DOUBLE 8
#define SIZEOF_LONG_DOUBLE 8
#define SIZEOF_WCHAR_T 4
#define SIZEOF_PID_T 4
#define SIZEOF_TIME_T 8
#define SIZEOF_OFF_T 8
#define SIZEOF_FPOS_T 8
#define SIZEOF_UINTPTR_T 8
#define SIZEOF__BOOL 1
#define ALIGNOF_LONG 8
#define ALIGNOF_SIZE_T 8
#define HAVE_WCHAR_H 1
#define HAVE_PTHREAD_H 1
#define HAVE_STDINT_H 1
#define HAVE_INTTYPES_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_UNISTD_H 1
#define HAVE_DYNAMIC_LOADING 1
#define HAVE_DLOPEN 1
#define HAVE_FORK 1
#define HAVE_STD_ATOMIC 1
#define HAVE_BUILTIN_ATOMIC 1
#define HAVE_LONG_DOUBLE 1
#define WITH_FREELISTS 1
#define WITH_PYMALLOC 1
#define WITH_DOC_STRINGS 1
#define PY_COERCE_C_LOCALE 1
#define _REENTRANT 1
#endif
