/// cuBLAS's header uses this type in declarations of functions that are not modeled.
#pragma once

struct __nv_bfloat16;
