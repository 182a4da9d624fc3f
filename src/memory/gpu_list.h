#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "vlmtrain/memory/gpu_table.h"

// Compiled into the virtual GPU's stub libraries too, so it includes only the standard library.

namespace vlmtrain::memory::gpu_list {

inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr double kTera = 1e12;
inline constexpr double kGiga = 1e9;

// A context's size depends on the driver and on the kernels that a process has loaded. On an H200,
// the context had 825 MiB at the end of a training run; 203 MiB of them were loaded after planning
// (measured on 2026-11-26). The value for other GPUs was not measured.
inline constexpr int64_t kDefaultContextBytes = 512 * kMiB;
inline constexpr int64_t kHopperContextBytes = 832 * kMiB;

/// Returns a GeForce GPU or a workstation GPU of the same chip. Its tensor cores with fp32
/// accumulation have twice the fp32 rate in bf16 and fp16, and the fp32 rate in TF32 (whitepapers
/// of GA102, AD102 and GB202, "Comparison of …"). Turing has neither bf16 nor TF32; its fp16 rate
/// is four times the fp32 rate.
constexpr GpuSpec make_geforce_gpu(std::string_view name, std::string_view device_name, int architecture,
                                   int num_multiprocessors, int l2_cache_mib, int memory_mib, double fp32_tflops,
                                   double bandwidth_gb_per_second) {
  const bool has_bf16 = architecture >= 80;
  const double fp32 = fp32_tflops * kTera;
  return {.name = name,
          .device_name = device_name,
          .architecture = architecture,
          .num_multiprocessors = num_multiprocessors,
          .l2_cache_bytes = l2_cache_mib * kMiB,
          .memory_bytes = memory_mib * kMiB,
          .context_bytes = kDefaultContextBytes,
          .fp32_flops = fp32,
          .tf32_flops = has_bf16 ? fp32 : 0,
          .bf16_flops = has_bf16 ? 2 * fp32 : 0,
          .fp16_flops = fp32 * (has_bf16 ? 2 : 4),
          .memory_bandwidth = bandwidth_gb_per_second * kGiga};
}

// Sources. Multiprocessors, cache and bandwidth: NVIDIA's whitepapers and data sheets. fp32 rate:
// at boost clock, which a laptop's power limit may not allow. Memory: from PyTorch's out-of-memory
// errors on Linux, which are rounded to 0.01 GiB. If drivers reported two values, the smaller one;
// if no such error is known, the value of a GPU of the same kind and size.
inline constexpr std::array kGeforceGpus{
    make_geforce_gpu("rtx2060", "NVIDIA GeForce RTX 2060", 75, 30, 3, 5'929, 6.5, 336),
    make_geforce_gpu("rtx2070", "NVIDIA GeForce RTX 2070", 75, 36, 4, 7'966, 7.5, 448),
    make_geforce_gpu("rtx2080", "NVIDIA GeForce RTX 2080", 75, 46, 4, 7'966, 10.1, 448),
    make_geforce_gpu("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", 75, 68, 5, 11'008, 13.4, 616),

    make_geforce_gpu("rtx3050", "NVIDIA GeForce RTX 3050", 86, 20, 2, 7'966, 9.1, 224),
    make_geforce_gpu("rtx3060", "NVIDIA GeForce RTX 3060", 86, 28, 3, 12'042, 12.7, 360),
    make_geforce_gpu("rtx3060ti", "NVIDIA GeForce RTX 3060 Ti", 86, 38, 4, 7'966, 16.2, 448),
    make_geforce_gpu("rtx3070", "NVIDIA GeForce RTX 3070", 86, 46, 4, 7'966, 20.3, 448),
    make_geforce_gpu("rtx3070ti", "NVIDIA GeForce RTX 3070 Ti", 86, 48, 4, 7'966, 21.7, 608),
    make_geforce_gpu("rtx3080", "NVIDIA GeForce RTX 3080", 86, 68, 5, 10'004, 29.8, 760),
    make_geforce_gpu("rtx3080ti", "NVIDIA GeForce RTX 3080 Ti", 86, 80, 6, 12'042, 34.1, 912),
    make_geforce_gpu("rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 6, 24'125, 35.6, 936),
    make_geforce_gpu("rtx3090ti", "NVIDIA GeForce RTX 3090 Ti", 86, 84, 6, 24'125, 40.0, 1008),
    make_geforce_gpu("rtx3060-laptop", "NVIDIA GeForce RTX 3060 Laptop GPU", 86, 30, 3, 5'929, 10.9, 336),
    make_geforce_gpu("rtx3070-laptop", "NVIDIA GeForce RTX 3070 Laptop GPU", 86, 40, 4, 7'966, 13.2, 448),
    make_geforce_gpu("rtx3080-laptop", "NVIDIA GeForce RTX 3080 Laptop GPU", 86, 48, 4, 15'985, 16.5, 448),

    make_geforce_gpu("rtx4060", "NVIDIA GeForce RTX 4060", 89, 24, 24, 7'813, 15.1, 272),
    make_geforce_gpu("rtx4060ti-8", "NVIDIA GeForce RTX 4060 Ti", 89, 34, 32, 7'813, 22.1, 288),
    make_geforce_gpu("rtx4060ti-16", "NVIDIA GeForce RTX 4060 Ti", 89, 34, 32, 15'974, 22.1, 288),
    make_geforce_gpu("rtx4070", "NVIDIA GeForce RTX 4070", 89, 46, 36, 12'001, 29.1, 504),
    make_geforce_gpu("rtx4070-super", "NVIDIA GeForce RTX 4070 SUPER", 89, 56, 48, 12'001, 35.5, 504),
    make_geforce_gpu("rtx4070ti", "NVIDIA GeForce RTX 4070 Ti", 89, 60, 48, 12'001, 40.1, 504),
    make_geforce_gpu("rtx4070ti-super", "NVIDIA GeForce RTX 4070 Ti SUPER", 89, 66, 48, 15'974, 44.1, 672),
    make_geforce_gpu("rtx4080", "NVIDIA GeForce RTX 4080", 89, 76, 64, 15'974, 48.7, 717),
    make_geforce_gpu("rtx4080-super", "NVIDIA GeForce RTX 4080 SUPER", 89, 80, 64, 15'974, 52.2, 736),
    make_geforce_gpu("rtx4050-laptop", "NVIDIA GeForce RTX 4050 Laptop GPU", 89, 20, 12, 5'888, 9.0, 192),
    make_geforce_gpu("rtx4060-laptop", "NVIDIA GeForce RTX 4060 Laptop GPU", 89, 24, 32, 7'813, 14.5, 256),
    make_geforce_gpu("rtx4070-laptop", "NVIDIA GeForce RTX 4070 Laptop GPU", 89, 36, 32, 7'813, 20.0, 256),
    make_geforce_gpu("rtx4080-laptop", "NVIDIA GeForce RTX 4080 Laptop GPU", 89, 58, 48, 11'909, 30.0, 432),
    make_geforce_gpu("rtx4090-laptop", "NVIDIA GeForce RTX 4090 Laptop GPU", 89, 76, 64, 15'974, 39.5, 576),

    make_geforce_gpu("rtx5060", "NVIDIA GeForce RTX 5060", 120, 30, 32, 7'752, 19.2, 448),
    make_geforce_gpu("rtx5060ti-8", "NVIDIA GeForce RTX 5060 Ti", 120, 36, 32, 7'752, 23.7, 448),
    make_geforce_gpu("rtx5060ti-16", "NVIDIA GeForce RTX 5060 Ti", 120, 36, 32, 15'841, 23.7, 448),
    make_geforce_gpu("rtx5070", "NVIDIA GeForce RTX 5070", 120, 48, 48, 11'899, 30.9, 672),
    make_geforce_gpu("rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 120, 70, 48, 15'841, 43.9, 896),
    make_geforce_gpu("rtx5080", "NVIDIA GeForce RTX 5080", 120, 84, 64, 15'841, 56.3, 960),
    make_geforce_gpu("rtx5070-laptop", "NVIDIA GeForce RTX 5070 Laptop GPU", 120, 36, 32, 7'752, 20.5, 384),
    make_geforce_gpu("rtx5080-laptop", "NVIDIA GeForce RTX 5080 Laptop GPU", 120, 60, 64, 15'841, 35.0, 896),
    make_geforce_gpu("rtx5090-laptop", "NVIDIA GeForce RTX 5090 Laptop GPU", 120, 82, 64, 24'054, 45.0, 896),
};

/// Returns the entries of both lists, sorted by architecture, then by memory.
template <size_t kLeftSize, size_t kRightSize>
constexpr std::array<GpuSpec, kLeftSize + kRightSize> merge_sorted(const std::array<GpuSpec, kLeftSize>& left,
                                                                   const std::array<GpuSpec, kRightSize>& right) {
  std::array<GpuSpec, kLeftSize + kRightSize> merged_gpus;
  std::ranges::copy(right, std::ranges::copy(left, merged_gpus.begin()).out);
  std::ranges::sort(merged_gpus, {},
                    [](const GpuSpec& gpu) { return std::tuple(gpu.architecture, gpu.memory_bytes, gpu.name); });
  return merged_gpus;
}

}  // namespace vlmtrain::memory::gpu_list
