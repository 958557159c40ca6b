// Marks what both sides call: host code of any compiler and kernels compiled by nvcc.
#pragma once

#if defined(__CUDACC__)
#define AUGUR_HOST_DEVICE __host__ __device__
#else
#define AUGUR_HOST_DEVICE
#endif
