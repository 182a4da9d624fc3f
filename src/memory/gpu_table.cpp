#include "vlmtrain/memory/gpu_table.h"

#include <algorithm>
#include <array>

// Compiled into the stand-ins of the virtual GPU as well: it includes nothing but the standard library.

namespace vlmtrain::memory {

namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

constexpr std::array kArchitectures{
    Architecture{75, 1024, 16, 64 * kKiB, 64 * kKiB},   Architecture{80, 2048, 32, 164 * kKiB, 163 * kKiB},
    Architecture{86, 1536, 16, 100 * kKiB, 99 * kKiB},  Architecture{89, 1536, 24, 100 * kKiB, 99 * kKiB},
    Architecture{90, 2048, 32, 228 * kKiB, 227 * kKiB}, Architecture{100, 2048, 32, 228 * kKiB, 227 * kKiB},
    Architecture{120, 1536, 24, 100 * kKiB, 99 * kKiB},
};

// Memory that was not measured is what PyTorch's out-of-memory errors of such cards say, to a hundredth of a GiB. No
// context was measured: it depends on the driver and on which kernels a process has loaded.
constexpr int64_t kUsualContext = 512 * kMiB;

constexpr Gpu kT4{.name = "t4",
                  .device_name = "Tesla T4",
                  .architecture = 75,
                  .multiprocessors = 40,
                  .l2_cache_bytes = 4 * kMiB,
                  .memory_bytes = 15'828'320'256,
                  .memory_measured = true,
                  .context_bytes = kUsualContext,
                  .fp32_operations = 8.1 * kTera,
                  .fp16_operations = 65 * kTera,
                  .memory_bandwidth = 320 * kGiga};

constexpr Gpu kA10040{.name = "a100-40",
                      .device_name = "NVIDIA A100-SXM4-40GB",
                      .architecture = 80,
                      .multiprocessors = 108,
                      .l2_cache_bytes = 40 * kMiB,
                      .memory_bytes = 40'335 * kMiB,
                      .context_bytes = kUsualContext,
                      .fp32_operations = 19.5 * kTera,
                      .tf32_operations = 156 * kTera,
                      .bf16_operations = 312 * kTera,
                      .fp16_operations = 312 * kTera,
                      .memory_bandwidth = 1555 * kGiga};

constexpr Gpu kA10080{.name = "a100-80",
                      .device_name = "NVIDIA A100-SXM4-80GB",
                      .architecture = 80,
                      .multiprocessors = 108,
                      .l2_cache_bytes = 40 * kMiB,
                      .memory_bytes = 85'097'971'712,
                      .memory_measured = true,
                      .context_bytes = kUsualContext,
                      .fp32_operations = 19.5 * kTera,
                      .tf32_operations = 156 * kTera,
                      .bf16_operations = 312 * kTera,
                      .fp16_operations = 312 * kTera,
                      .memory_bandwidth = 2039 * kGiga};

constexpr Gpu kRtx3090{.name = "rtx3090",
                       .device_name = "NVIDIA GeForce RTX 3090",
                       .architecture = 86,
                       .multiprocessors = 82,
                       .l2_cache_bytes = 6 * kMiB,
                       .memory_bytes = 24'125 * kMiB,
                       .context_bytes = kUsualContext,
                       .fp32_operations = 35.6 * kTera,
                       .tf32_operations = 35.6 * kTera,
                       .bf16_operations = 71 * kTera,
                       .fp16_operations = 71 * kTera,
                       .memory_bandwidth = 936 * kGiga};

constexpr Gpu kA6000{.name = "a6000",
                     .device_name = "NVIDIA RTX A6000",
                     .architecture = 86,
                     .multiprocessors = 84,
                     .l2_cache_bytes = 6 * kMiB,
                     .memory_bytes = 51'033'931'776,
                     .memory_measured = true,
                     .context_bytes = kUsualContext,
                     .fp32_operations = 38.7 * kTera,
                     .tf32_operations = 77.4 * kTera,
                     .bf16_operations = 154.8 * kTera,
                     .fp16_operations = 154.8 * kTera,
                     .memory_bandwidth = 768 * kGiga};

constexpr Gpu kL4{.name = "l4",
                  .device_name = "NVIDIA L4",
                  .architecture = 89,
                  .multiprocessors = 58,
                  .l2_cache_bytes = 48 * kMiB,
                  .memory_bytes = 22'558 * kMiB,
                  .context_bytes = kUsualContext,
                  .fp32_operations = 30.3 * kTera,
                  .tf32_operations = 60 * kTera,
                  .bf16_operations = 121 * kTera,
                  .fp16_operations = 121 * kTera,
                  .memory_bandwidth = 300 * kGiga};

constexpr Gpu kRtx4090{.name = "rtx4090",
                       .device_name = "NVIDIA GeForce RTX 4090",
                       .architecture = 89,
                       .multiprocessors = 128,
                       .l2_cache_bytes = 72 * kMiB,
                       .memory_bytes = 25'386'352'640,
                       .memory_measured = true,
                       .context_bytes = kUsualContext,
                       .fp32_operations = 82.6 * kTera,
                       .tf32_operations = 82.6 * kTera,
                       .bf16_operations = 165.2 * kTera,
                       .fp16_operations = 165.2 * kTera,
                       .memory_bandwidth = 1008 * kGiga};

constexpr Gpu kL40s{.name = "l40s",
                    .device_name = "NVIDIA L40S",
                    .architecture = 89,
                    .multiprocessors = 142,
                    .l2_cache_bytes = 96 * kMiB,
                    .memory_bytes = 45'455 * kMiB,
                    .context_bytes = kUsualContext,
                    .fp32_operations = 91.6 * kTera,
                    .tf32_operations = 183 * kTera,
                    .bf16_operations = 362 * kTera,
                    .fp16_operations = 362 * kTera,
                    .memory_bandwidth = 864 * kGiga};

constexpr Gpu kH100{.name = "h100",
                    .device_name = "NVIDIA H100 80GB HBM3",
                    .architecture = 90,
                    .multiprocessors = 132,
                    .l2_cache_bytes = 50 * kMiB,
                    .memory_bytes = 85'029'158'912,
                    .memory_measured = true,
                    .context_bytes = kUsualContext,
                    .fp32_operations = 66.9 * kTera,
                    .tf32_operations = 494.7 * kTera,
                    .bf16_operations = 989.4 * kTera,
                    .fp16_operations = 989.4 * kTera,
                    .memory_bandwidth = 3352 * kGiga};

constexpr Gpu kH200{.name = "h200",
                    .device_name = "NVIDIA H200",
                    .architecture = 90,
                    .multiprocessors = 132,
                    .l2_cache_bytes = 60 * kMiB,
                    .memory_bytes = 143'155 * kMiB,
                    .context_bytes = kUsualContext,
                    .fp32_operations = 66.9 * kTera,
                    .tf32_operations = 494.7 * kTera,
                    .bf16_operations = 989.4 * kTera,
                    .fp16_operations = 989.4 * kTera,
                    .memory_bandwidth = 4800 * kGiga};

constexpr Gpu kB200{.name = "b200",
                    .device_name = "NVIDIA B200",
                    .architecture = 100,
                    .multiprocessors = 148,
                    .l2_cache_bytes = 132'644'864,
                    .memory_bytes = 191'512'215'552,
                    .memory_measured = true,
                    .context_bytes = kUsualContext,
                    .fp32_operations = 75 * kTera,
                    .tf32_operations = 1100 * kTera,
                    .bf16_operations = 2250 * kTera,
                    .fp16_operations = 2250 * kTera,
                    .memory_bandwidth = 8000 * kGiga};

constexpr Gpu kRtx5090{.name = "rtx5090",
                       .device_name = "NVIDIA GeForce RTX 5090",
                       .architecture = 120,
                       .multiprocessors = 170,
                       .l2_cache_bytes = 96 * kMiB,
                       .memory_bytes = 33'661'911'040,
                       .memory_measured = true,
                       .context_bytes = kUsualContext,
                       .fp32_operations = 104.8 * kTera,
                       .tf32_operations = 104.8 * kTera,
                       .bf16_operations = 209.5 * kTera,
                       .fp16_operations = 209.5 * kTera,
                       .memory_bandwidth = 1792 * kGiga};

constexpr std::array kGpus{kT4,      kA10040, kA10080, kRtx3090, kA6000, kL4,
                           kRtx4090, kL40s,   kH100,   kH200,    kB200,  kRtx5090};

}  // namespace

std::span<const Gpu> gpus() {
  return kGpus;
}

const Gpu* find_gpu(std::string_view name) {
  const auto* const found = std::ranges::find(kGpus, name, &Gpu::name);
  return found == kGpus.end() ? nullptr : found;
}

const Architecture& architecture(int number) {
  return *std::ranges::find(kArchitectures, number, &Architecture::number);
}

}  // namespace vlmtrain::memory
