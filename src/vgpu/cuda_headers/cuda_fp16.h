/// cuBLAS's header names this type in the declarations of calls that are not modelled.
#pragma once

struct __half;
