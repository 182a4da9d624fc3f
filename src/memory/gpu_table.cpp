#include "vlmtrain/memory/gpu_table.h"

#include <algorithm>
#include <array>

#include "memory/gpu_list.h"

// Compiled into the virtual GPU's stub libraries too, so it includes only the standard library.

namespace vlmtrain::memory {

namespace {

using gpu_list::kDefaultContextBytes;
using gpu_list::kGiga;
using gpu_list::kHopperContextBytes;
using gpu_list::kMiB;
using gpu_list::kTera;
using gpu_list::make_geforce_gpu;

constexpr int64_t kKiB = 1024;

// In the order of the fields: compute capability, threads and blocks per multiprocessor, shared
// memory per multiprocessor and per block.
constexpr std::array kArchitectureLimits{
    ArchitectureLimits{75, 1024, 16, 64 * kKiB, 64 * kKiB},   ArchitectureLimits{80, 2048, 32, 164 * kKiB, 163 * kKiB},
    ArchitectureLimits{86, 1536, 16, 100 * kKiB, 99 * kKiB},  ArchitectureLimits{89, 1536, 24, 100 * kKiB, 99 * kKiB},
    ArchitectureLimits{90, 2048, 32, 228 * kKiB, 227 * kKiB}, ArchitectureLimits{100, 2048, 32, 228 * kKiB, 227 * kKiB},
    ArchitectureLimits{120, 1536, 24, 100 * kKiB, 99 * kKiB},
};

// Memory sizes that were not measured come from PyTorch's out-of-memory errors, which are rounded
// to 0.01 GiB.

constexpr GpuSpec kT4{.name = "t4",
                      .device_name = "Tesla T4",
                      .architecture = 75,
                      .num_multiprocessors = 40,
                      .l2_cache_bytes = 4 * kMiB,
                      .memory_bytes = 15'828'320'256,
                      .is_memory_measured = true,
                      .context_bytes = kDefaultContextBytes,
                      .fp32_flops = 8.1 * kTera,
                      .fp16_flops = 65 * kTera,
                      .memory_bandwidth = 320 * kGiga};

constexpr GpuSpec kA100Sxm40{.name = "a100-40",
                             .device_name = "NVIDIA A100-SXM4-40GB",
                             .architecture = 80,
                             .num_multiprocessors = 108,
                             .l2_cache_bytes = 40 * kMiB,
                             .memory_bytes = 40'335 * kMiB,
                             .context_bytes = kDefaultContextBytes,
                             .fp32_flops = 19.5 * kTera,
                             .tf32_flops = 156 * kTera,
                             .bf16_flops = 312 * kTera,
                             .fp16_flops = 312 * kTera,
                             .memory_bandwidth = 1555 * kGiga,
                             .nvlink_bandwidth = 300 * kGiga};

constexpr GpuSpec kA100Sxm80{.name = "a100-80",
                             .device_name = "NVIDIA A100-SXM4-80GB",
                             .architecture = 80,
                             .num_multiprocessors = 108,
                             .l2_cache_bytes = 40 * kMiB,
                             .memory_bytes = 85'097'971'712,
                             .is_memory_measured = true,
                             .context_bytes = kDefaultContextBytes,
                             .fp32_flops = 19.5 * kTera,
                             .tf32_flops = 156 * kTera,
                             .bf16_flops = 312 * kTera,
                             .fp16_flops = 312 * kTera,
                             .memory_bandwidth = 2039 * kGiga,
                             .nvlink_bandwidth = 300 * kGiga};

constexpr GpuSpec kA6000{.name = "a6000",
                         .device_name = "NVIDIA RTX A6000",
                         .architecture = 86,
                         .num_multiprocessors = 84,
                         .l2_cache_bytes = 6 * kMiB,
                         .memory_bytes = 51'033'931'776,
                         .is_memory_measured = true,
                         .context_bytes = kDefaultContextBytes,
                         .fp32_flops = 38.7 * kTera,
                         .tf32_flops = 77.4 * kTera,
                         .bf16_flops = 154.8 * kTera,
                         .fp16_flops = 154.8 * kTera,
                         .memory_bandwidth = 768 * kGiga};

constexpr GpuSpec kL4{.name = "l4",
                      .device_name = "NVIDIA L4",
                      .architecture = 89,
                      .num_multiprocessors = 58,
                      .l2_cache_bytes = 48 * kMiB,
                      .memory_bytes = 22'558 * kMiB,
                      .context_bytes = kDefaultContextBytes,
                      .fp32_flops = 30.3 * kTera,
                      .tf32_flops = 60 * kTera,
                      .bf16_flops = 121 * kTera,
                      .fp16_flops = 121 * kTera,
                      .memory_bandwidth = 300 * kGiga};

constexpr GpuSpec kRtx4090{.name = "rtx4090",
                           .device_name = "NVIDIA GeForce RTX 4090",
                           .architecture = 89,
                           .num_multiprocessors = 128,
                           .l2_cache_bytes = 72 * kMiB,
                           .memory_bytes = 25'386'352'640,
                           .is_memory_measured = true,
                           .context_bytes = kDefaultContextBytes,
                           .fp32_flops = 82.6 * kTera,
                           .tf32_flops = 82.6 * kTera,
                           .bf16_flops = 165.2 * kTera,
                           .fp16_flops = 165.2 * kTera,
                           .memory_bandwidth = 1008 * kGiga};

constexpr GpuSpec kL40s{.name = "l40s",
                        .device_name = "NVIDIA L40S",
                        .architecture = 89,
                        .num_multiprocessors = 142,
                        .l2_cache_bytes = 96 * kMiB,
                        .memory_bytes = 45'455 * kMiB,
                        .context_bytes = kDefaultContextBytes,
                        .fp32_flops = 91.6 * kTera,
                        .tf32_flops = 183 * kTera,
                        .bf16_flops = 362 * kTera,
                        .fp16_flops = 362 * kTera,
                        .memory_bandwidth = 864 * kGiga};

constexpr GpuSpec kH100{.name = "h100",
                        .device_name = "NVIDIA H100 80GB HBM3",
                        .architecture = 90,
                        .num_multiprocessors = 132,
                        .l2_cache_bytes = 50 * kMiB,
                        .memory_bytes = 85'029'158'912,
                        .is_memory_measured = true,
                        .context_bytes = kHopperContextBytes,
                        .fp32_flops = 66.9 * kTera,
                        .tf32_flops = 494.7 * kTera,
                        .bf16_flops = 989.4 * kTera,
                        .fp16_flops = 989.4 * kTera,
                        .memory_bandwidth = 3352 * kGiga,
                        .nvlink_bandwidth = 450 * kGiga};

constexpr GpuSpec kH200{.name = "h200",
                        .device_name = "NVIDIA H200",
                        .architecture = 90,
                        .num_multiprocessors = 132,
                        .l2_cache_bytes = 60 * kMiB,
                        .memory_bytes = 150'109'880'320,
                        .is_memory_measured = true,
                        .context_bytes = kHopperContextBytes,
                        .fp32_flops = 66.9 * kTera,
                        .tf32_flops = 494.7 * kTera,
                        .bf16_flops = 989.4 * kTera,
                        .fp16_flops = 989.4 * kTera,
                        .memory_bandwidth = 4800 * kGiga,
                        .nvlink_bandwidth = 450 * kGiga};

constexpr GpuSpec kB200{.name = "b200",
                        .device_name = "NVIDIA B200",
                        .architecture = 100,
                        .num_multiprocessors = 148,
                        .l2_cache_bytes = 132'644'864,
                        .memory_bytes = 191'512'215'552,
                        .is_memory_measured = true,
                        .context_bytes = kDefaultContextBytes,
                        .fp32_flops = 75 * kTera,
                        .tf32_flops = 1100 * kTera,
                        .bf16_flops = 2250 * kTera,
                        .fp16_flops = 2250 * kTera,
                        .memory_bandwidth = 8000 * kGiga,
                        .nvlink_bandwidth = 900 * kGiga};

constexpr GpuSpec kRtx5090{.name = "rtx5090",
                           .device_name = "NVIDIA GeForce RTX 5090",
                           .architecture = 120,
                           .num_multiprocessors = 170,
                           .l2_cache_bytes = 96 * kMiB,
                           .memory_bytes = 33'661'911'040,
                           .is_memory_measured = true,
                           .context_bytes = kDefaultContextBytes,
                           .fp32_flops = 104.8 * kTera,
                           .tf32_flops = 104.8 * kTera,
                           .bf16_flops = 209.5 * kTera,
                           .fp16_flops = 209.5 * kTera,
                           .memory_bandwidth = 1792 * kGiga};

/// Returns a MIG instance with `num_eighths` / 8 of its GPU's cache and bandwidth.
constexpr GpuSpec make_mig_slice(GpuSpec gpu, std::string_view name, std::string_view device_name,
                                 int num_multiprocessors, int num_eighths, int64_t memory_mib) {
  const double multiprocessor_ratio = static_cast<double>(num_multiprocessors) / gpu.num_multiprocessors;
  gpu.name = name;
  gpu.device_name = device_name;
  gpu.num_multiprocessors = num_multiprocessors;
  gpu.l2_cache_bytes = gpu.l2_cache_bytes * num_eighths / 8;
  gpu.memory_bytes = memory_mib * kMiB;
  gpu.is_memory_measured = false;
  gpu.fp32_flops *= multiprocessor_ratio;
  gpu.tf32_flops *= multiprocessor_ratio;
  gpu.bf16_flops *= multiprocessor_ratio;
  gpu.fp16_flops *= multiprocessor_ratio;
  gpu.memory_bandwidth *= num_eighths / 8.0;
  gpu.nvlink_bandwidth = 0;  // instances cannot access each other's memory
  return gpu;
}

// Multiprocessors and memory as listed by `nvidia-smi mig -lgip`.
constexpr std::array kMigSlices{
    make_mig_slice(kA100Sxm40, "a100-40-mig-1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 1, 4'864),
    make_mig_slice(kA100Sxm40, "a100-40-mig-1g.10gb", "NVIDIA A100-SXM4-40GB MIG 1g.10gb", 14, 2, 9'984),
    make_mig_slice(kA100Sxm40, "a100-40-mig-2g.10gb", "NVIDIA A100-SXM4-40GB MIG 2g.10gb", 28, 2, 9'984),
    make_mig_slice(kA100Sxm40, "a100-40-mig-3g.20gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, 4, 20'096),
    make_mig_slice(kA100Sxm40, "a100-40-mig-4g.20gb", "NVIDIA A100-SXM4-40GB MIG 4g.20gb", 56, 4, 20'096),
    make_mig_slice(kA100Sxm40, "a100-40-mig-7g.40gb", "NVIDIA A100-SXM4-40GB MIG 7g.40gb", 98, 8, 40'192),
    make_mig_slice(kA100Sxm80, "a100-80-mig-1g.10gb", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 14, 1, 9'728),
    make_mig_slice(kA100Sxm80, "a100-80-mig-1g.20gb", "NVIDIA A100-SXM4-80GB MIG 1g.20gb", 14, 2, 19'968),
    make_mig_slice(kA100Sxm80, "a100-80-mig-2g.20gb", "NVIDIA A100-SXM4-80GB MIG 2g.20gb", 28, 2, 19'968),
    make_mig_slice(kA100Sxm80, "a100-80-mig-3g.40gb", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42, 4, 40'192),
    make_mig_slice(kA100Sxm80, "a100-80-mig-4g.40gb", "NVIDIA A100-SXM4-80GB MIG 4g.40gb", 56, 4, 40'192),
    make_mig_slice(kA100Sxm80, "a100-80-mig-7g.80gb", "NVIDIA A100-SXM4-80GB MIG 7g.80gb", 98, 8, 80'640),
    make_mig_slice(kH100, "h100-mig-1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 1, 9'984),
    make_mig_slice(kH100, "h100-mig-1g.20gb", "NVIDIA H100 80GB HBM3 MIG 1g.20gb", 26, 2, 20'096),
    make_mig_slice(kH100, "h100-mig-2g.20gb", "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 32, 2, 20'096),
    make_mig_slice(kH100, "h100-mig-3g.40gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 60, 4, 40'448),
    make_mig_slice(kH100, "h100-mig-4g.40gb", "NVIDIA H100 80GB HBM3 MIG 4g.40gb", 64, 4, 40'448),
    make_mig_slice(kH100, "h100-mig-7g.80gb", "NVIDIA H100 80GB HBM3 MIG 7g.80gb", 132, 8, 80'896),
};

constexpr std::array kUnsupportedGpus{
    UnsupportedGpu{"v100", "Tesla V100 (Volta)", 70},
    UnsupportedGpu{"v100-16", "Tesla V100 16GB (Volta)", 70},
    UnsupportedGpu{"v100-32", "Tesla V100 32GB (Volta)", 70},
    UnsupportedGpu{"v100s", "Tesla V100S (Volta)", 70},
    UnsupportedGpu{"titan-v", "TITAN V (Volta)", 70},
    UnsupportedGpu{"gv100", "Quadro GV100 (Volta)", 70},
    UnsupportedGpu{"p100", "Tesla P100 (Pascal)", 60},
    UnsupportedGpu{"p40", "Tesla P40 (Pascal)", 61},
    UnsupportedGpu{"p4", "Tesla P4 (Pascal)", 61},
    UnsupportedGpu{"gtx1080ti", "GeForce GTX 1080 Ti (Pascal)", 61},
    UnsupportedGpu{"gtx1080", "GeForce GTX 1080 (Pascal)", 61},
    UnsupportedGpu{"titan-xp", "TITAN Xp (Pascal)", 61},
    UnsupportedGpu{"m60", "Tesla M60 (Maxwell)", 52},
    UnsupportedGpu{"m40", "Tesla M40 (Maxwell)", 52},
    UnsupportedGpu{"k80", "Tesla K80 (Kepler)", 37},
};

/// Returns `gpu` with the dense bf16 and fp16 rate of its tensor cores, for GPUs where that rate is
/// not twice the fp32 rate. TF32 has half of it.
constexpr GpuSpec make_professional_gpu(GpuSpec gpu, double tensor_tflops) {
  gpu.tf32_flops = tensor_tflops / 2 * kTera;
  gpu.bf16_flops = tensor_tflops * kTera;
  gpu.fp16_flops = tensor_tflops * kTera;
  return gpu;
}

constexpr GpuSpec kA4000 =
    make_professional_gpu(make_geforce_gpu("a4000", "NVIDIA RTX A4000", 86, 48, 4, 15'985, 19.2, 448), 76.7);
constexpr GpuSpec kA5000 =
    make_professional_gpu(make_geforce_gpu("a5000", "NVIDIA RTX A5000", 86, 64, 6, 24'136, 27.8, 768), 111.1);
constexpr GpuSpec kA10 =
    make_professional_gpu(make_geforce_gpu("a10", "NVIDIA A10", 86, 72, 6, 22'580, 31.2, 600), 125);
constexpr GpuSpec kA10g =
    make_professional_gpu(make_geforce_gpu("a10g", "NVIDIA A10G", 86, 80, 6, 22'508, 35, 600), 70);
constexpr GpuSpec kRtx6000Ada = make_professional_gpu(
    make_geforce_gpu("rtx6000-ada", "NVIDIA RTX 6000 Ada Generation", 89, 142, 96, 45'496, 91.1, 960), 364.2);
constexpr GpuSpec kL40 =
    make_professional_gpu(make_geforce_gpu("l40", "NVIDIA L40", 89, 142, 96, 45'496, 90.5, 864), 181);
constexpr GpuSpec replace_context_bytes(GpuSpec gpu, int64_t bytes) {
  gpu.context_bytes = bytes;
  return gpu;
}

constexpr GpuSpec kH100Pcie = replace_context_bytes(
    make_professional_gpu(make_geforce_gpu("h100-pcie", "NVIDIA H100 PCIe", 90, 114, 50, 80'998, 51.2, 2039), 756),
    kHopperContextBytes);
constexpr GpuSpec kRtxPro6000 =
    make_professional_gpu(make_geforce_gpu("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 120,
                                           188, 128, 97'249, 125, 1792),
                          503.8);

constexpr std::array kOtherGpus{kT4,   kA100Sxm40, kA100Sxm80, kA6000,   kA4000,      kA5000, kA10,
                                kA10g, kL4,        kL40,       kL40s,    kRtx6000Ada, kH100,  kH100Pcie,
                                kH200, kB200,      kRtx4090,   kRtx5090, kRtxPro6000};
constexpr auto kGpus = gpu_list::merge_sorted(kOtherGpus, gpu_list::kGeforceGpus);

}  // namespace

std::span<const GpuSpec> list_gpu_specs() {
  return kGpus;
}

std::span<const GpuSpec> list_mig_slices() {
  return kMigSlices;
}

const GpuSpec* find_gpu_spec(std::string_view name) {
  const auto* const gpu = std::ranges::find(kGpus, name, &GpuSpec::name);
  if (gpu != kGpus.end()) return gpu;
  const auto* const slice = std::ranges::find(kMigSlices, name, &GpuSpec::name);
  return slice == kMigSlices.end() ? nullptr : slice;
}

GpuSpec scale_multiprocessors(GpuSpec gpu, int num_multiprocessors) {
  const double multiprocessor_ratio = static_cast<double>(num_multiprocessors) / gpu.num_multiprocessors;
  gpu.num_multiprocessors = num_multiprocessors;
  gpu.fp32_flops *= multiprocessor_ratio;
  gpu.tf32_flops *= multiprocessor_ratio;
  gpu.bf16_flops *= multiprocessor_ratio;
  gpu.fp16_flops *= multiprocessor_ratio;
  // A fraction of a GPU has a fraction of its bandwidth and cache; a GPU with more multiprocessors
  // need not have more of either.
  gpu.memory_bandwidth *= std::min(1.0, multiprocessor_ratio);
  gpu.l2_cache_bytes =
      static_cast<int64_t>(static_cast<double>(gpu.l2_cache_bytes) * std::min(1.0, multiprocessor_ratio));
  return gpu;
}

const UnsupportedGpu* find_unsupported_gpu(std::string_view name) {
  const auto* const it = std::ranges::find(kUnsupportedGpus, name, &UnsupportedGpu::name);
  return it == kUnsupportedGpus.end() ? nullptr : it;
}

const ArchitectureLimits& get_architecture_limits(int compute_capability) {
  const auto* const newer_limits =
      std::ranges::upper_bound(kArchitectureLimits, compute_capability, {}, &ArchitectureLimits::compute_capability);
  return newer_limits == kArchitectureLimits.begin() ? kArchitectureLimits.front() : *(newer_limits - 1);
}

}  // namespace vlmtrain::memory
