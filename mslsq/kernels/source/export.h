// Names of exported functions: MSLSQ_EXPORT(factor, f64) is `mslsq_factor_f64_<target>`.
#pragma once

#ifndef MSLSQ_TARGET
#define MSLSQ_TARGET baseline
#endif

#define MSLSQ_JOIN_(name, type, target) mslsq_##name##_##type##_##target
#define MSLSQ_JOIN(name, type, target) MSLSQ_JOIN_(name, type, target)
#define MSLSQ_EXPORT(name, type) \
    extern "C" __attribute__((visibility("default"))) void MSLSQ_JOIN(name, type, MSLSQ_TARGET)
