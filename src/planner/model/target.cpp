#include "vlmtrain/planner/target.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <tuple>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kPageBytes = 2 * kMiB;  // allocation unit of NVIDIA's driver
/// Fraction of a GPU's nominal size that drivers report (make_target_gpu()).
constexpr double kReportedMemoryFraction = 0.98;

/// Memory in use before the first allocation counts as this process's context if it is at most this
/// multiple of the table's context size. Chosen without measurement.
constexpr int64_t kMaxContextMultiple = 2;
/// Growth of a context when a step's kernels are loaded: 203 MiB on an H200
/// (src/memory/gpu_list.h).
constexpr int64_t kLazyLoadedKernelBytes = 208 * kMiB;

/// The GPU that represents all GPUs up to a nominal size in GiB.
struct GpuSizeClass {
  double max_gib;
  const char* gpu;  // name in the GPU table
};

/// A common GPU of each size, for architecture and FLOPS. The sizes ascend.
constexpr std::array kGpuSizeClasses{
    GpuSizeClass{24, "rtx4090"}, GpuSizeClass{32, "rtx5090"}, GpuSizeClass{40, "a100-40"}, GpuSizeClass{48, "a6000"},
    GpuSizeClass{80, "h100"},    GpuSizeClass{141, "h200"},   GpuSizeClass{1024, "b200"}};

/// Returns the words of a GPU's name in lower case, without brands: "NVIDIA GeForce RTX 4090"
/// becomes rtx, 4090.
std::vector<std::string> split_gpu_name(std::string_view name) {
  constexpr std::array<std::string_view, 4> kGpuBrands{"nvidia", "geforce", "tesla", "gpu"};
  std::vector<std::string> words(1);
  for (const unsigned char character : name) {
    if (std::isalnum(character) != 0) {
      words.back() += static_cast<char>(std::tolower(character));
    } else {
      words.emplace_back();
    }
  }
  std::ranges::replace(words, "mobile", "laptop");
  std::erase_if(words, [&](const std::string& word) {
    return word.empty() || std::ranges::find(kGpuBrands, word) != kGpuBrands.end();
  });
  return words;
}

/// Returns the GPUs whose names consist of exactly these words, or else those whose names begin
/// with them.
std::vector<const memory::GpuSpec*> find_gpus_by_words(const std::vector<std::string>& words) {
  std::vector<const memory::GpuSpec*> exact_matches;
  std::vector<const memory::GpuSpec*> prefix_matches;
  if (words.empty()) return exact_matches;
  const std::string joined_words = fmt::format("{}", fmt::join(words, ""));
  const auto matches_name = [&](const std::vector<std::string>& gpu_words) {
    const std::string name = fmt::format("{}", fmt::join(gpu_words, ""));
    return joined_words == name || "rtx" + joined_words == name;
  };
  for (const auto& gpu : memory::list_gpu_specs()) {
    const auto device_name_words = split_gpu_name(gpu.device_name);
    if (matches_name(split_gpu_name(gpu.name)) || matches_name(device_name_words)) exact_matches.push_back(&gpu);
    if (std::ranges::mismatch(words, device_name_words).in1 == words.end()) prefix_matches.push_back(&gpu);
  }
  return exact_matches.empty() ? prefix_matches : exact_matches;
}

/// Returns whether the GPU has this nominal size in GiB. Drivers report a little less; up to an
/// eighth less is accepted.
bool has_nominal_size(const memory::GpuSpec& gpu, int64_t nominal_gib) {
  const double missing_gib = static_cast<double>(nominal_gib) - static_cast<double>(gpu.memory_bytes) / kGiB;
  return missing_gib >= 0 && missing_gib < static_cast<double>(nominal_gib) / 8;
}

/// Returns the GPUs that a name may refer to. Accepts names of the table and names as users and
/// drivers write them: "RTX 4090", "4090", "H100 80GB", "3060 12 GB", "4080 mobile".
std::vector<const memory::GpuSpec*> find_matching_gpus(const std::string& name) {
  if (const auto* const gpu = memory::find_gpu_spec(name)) return {gpu};
  auto words = split_gpu_name(name);
  auto matches = find_gpus_by_words(words);
  if (matches.empty() && !words.empty()) {
    if (words.back() == "gb") words.pop_back();
    if (words.empty()) return {};
    const auto size = parse_int_after_prefix("", words.back().substr(0, words.back().find("gb")));
    if (!size) return {};
    words.pop_back();
    matches = find_gpus_by_words(words);
    std::erase_if(matches, [&](const memory::GpuSpec* gpu) { return !has_nominal_size(*gpu, *size); });
  }
  return matches;
}

[[noreturn]] void throw_unknown_gpu(const std::string& name, const std::vector<const memory::GpuSpec*>& matches) {
  const auto get_sorted_names = [](const auto& gpus, const auto& get_name) {
    std::vector<std::string> names(gpus.size());
    std::ranges::transform(gpus, names.begin(),
                           [&](const auto& gpu) { return std::string(std::invoke(get_name, gpu)); });
    std::ranges::sort(names);
    return names;
  };
  const auto join_names = [](const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, ", "));
  };
  if (!matches.empty()) {
    const auto names = get_sorted_names(matches, [](const memory::GpuSpec* gpu) { return gpu->name; });
    throw usage_error("gpu {}: ambiguous; choose one of {}", name, join_names(names));
  }
  const auto gpu_names = get_sorted_names(memory::list_gpu_specs(), &memory::GpuSpec::name);
  const auto mig_names = get_sorted_names(memory::list_mig_slices(), &memory::GpuSpec::name);
  std::vector<std::string> all_names;
  std::ranges::set_union(gpu_names, mig_names, std::back_inserter(all_names));
  const auto closest_name = find_nearest_word(name, all_names);
  const std::string hint = closest_name ? fmt::format("did you mean {}? ", *closest_name) : "";
  if (name.find("mig") != std::string::npos) {
    throw usage_error(
        "gpu {}: unknown; {}the known MIG instances are {}; on any other one, a run uses the driver's values", name,
        hint, join_names(mig_names));
  }
  // The nearest GPUs, or all if none is near.
  constexpr size_t kMaxListedGpus = 10;
  std::vector<std::string> remaining_names = gpu_names;
  std::vector<std::string> nearest_names;
  while (nearest_names.size() < kMaxListedGpus) {
    const auto next = find_nearest_word(name, remaining_names);
    if (!next) break;
    nearest_names.push_back(*next);
    std::erase(remaining_names, *next);
  }
  throw usage_error("gpu {}: unknown; {}for another GPU, set --gpu-gb GB; the {} GPUs are {}", name, hint,
                    nearest_names.empty() ? "known" : "nearest known",
                    join_names(nearest_names.empty() ? gpu_names : nearest_names));
}

std::string format_gigabytes(int64_t bytes) {
  return fmt::format("{:.2f} GB", to_gigabytes(bytes));
}

}  // namespace

TargetGpu find_target_gpu(const std::string& name) {
  if (const auto* const unsupported = memory::find_unsupported_gpu(name); unsupported != nullptr) {
    throw usage_error(
        "gpu {}: {} has compute capability {}.{}, but LibTorch for CUDA 13 has no code for GPUs below 7.5 (Turing: "
        "T4, RTX 20); choose a newer GPU, such as --gpu t4, or train on the CPU (--device cpu)",
        name, unsupported->device_name, unsupported->architecture / 10, unsupported->architecture % 10);
  }
  const auto matches = find_matching_gpus(name);
  if (matches.size() != 1) throw_unknown_gpu(name, matches);
  const memory::GpuSpec* const gpu = matches.front();
  return {.gpu = gpu,
          .memory_bytes = gpu->memory_bytes,
          .context_bytes = gpu->context_bytes,
          .is_context_measured = gpu->is_context_measured,
          .description = fmt::format("{} ({})", gpu->device_name, format_gigabytes(gpu->memory_bytes)),
          .device_name = std::string(gpu->device_name)};
}

TargetGpu make_target_gpu(double nominal_gib) {
  // Outside of these sizes the value is a typing error, such as bytes.
  constexpr double kMinNominalGib = 1;
  constexpr double kMaxNominalGib = 1024;
  if (!(nominal_gib >= kMinNominalGib && nominal_gib <= kMaxNominalGib)) {
    throw usage_error("--gpu-gb {}: must be the GPU's memory size in gigabytes, from {} to {}", nominal_gib,
                      kMinNominalGib, kMaxNominalGib);
  }
  const auto* const size_class =
      std::find_if(kGpuSizeClasses.begin(), kGpuSizeClasses.end(),
                   [&](const GpuSizeClass& candidate) { return nominal_gib <= candidate.max_gib; });
  const memory::GpuSpec* const gpu = memory::find_gpu_spec(size_class->gpu);
  const auto num_pages = static_cast<int64_t>(std::floor(nominal_gib * kGiB * kReportedMemoryFraction / kPageBytes));
  const int64_t bytes = num_pages * kPageBytes;
  return {gpu, bytes, gpu->context_bytes, gpu->is_context_measured,
          fmt::format("a GPU with {:g} GB (its driver reports about {}; architecture and speed of an {})", nominal_gib,
                      format_gigabytes(bytes), gpu->device_name)};
}

bool supports_precision(const memory::GpuSpec& gpu, engine::Precision precision) {
  return precision != engine::Precision::kBf16 || gpu.bf16_flops > 0;
}

TargetGpu make_target_gpu(const memory::DeviceProperties& device) {
  if (!memory::has_kernel_code(device.architecture)) {
    throw run_error("{}: LibTorch for CUDA 13 has no code for compute capability {}.{}; use another GPU", device.name,
                    device.architecture / 10, device.architecture % 10);
  }
  // A MIG slice that is not in the table belongs to the GPU whose name it begins with.
  const std::string parent_gpu_name = device.name.substr(0, device.name.find(" MIG "));
  // The GPU with the lowest tuple is the most similar one: by name, then architecture (older ones
  // before newer ones), then number of multiprocessors.
  const auto compute_dissimilarity = [&](const memory::GpuSpec& gpu) {
    return std::tuple(gpu.device_name != device.name, gpu.device_name != parent_gpu_name,
                      gpu.architecture > device.architecture, std::abs(gpu.architecture - device.architecture),
                      std::abs(gpu.num_multiprocessors - device.num_multiprocessors));
  };
  std::vector<const memory::GpuSpec*> gpus;
  for (const auto& gpu : memory::list_gpu_specs()) gpus.push_back(&gpu);
  for (const auto& gpu : memory::list_mig_slices()) {
    if (gpu.device_name == device.name) gpus.push_back(&gpu);
  }
  const memory::GpuSpec* const nearest_gpu = *std::ranges::min_element(gpus, [&](const auto* left, const auto* right) {
    return compute_dissimilarity(*left) < compute_dissimilarity(*right);
  });
  std::string description = fmt::format("{} ({})", device.name, format_gigabytes(device.total_bytes));
  if (nearest_gpu->device_name != device.name) {
    description +=
        fmt::format(", planned as {} with {} multiprocessors", nearest_gpu->device_name, device.num_multiprocessors);
  }
  // The driver does not report which process uses the memory. Kernels are loaded on first use, so
  // that the context grows by kLazyLoadedKernelBytes later.
  const int64_t used_bytes = device.total_bytes - device.free_bytes;
  const int64_t loaded_context_bytes = used_bytes + (is_on_virtual_gpu() ? 0 : kLazyLoadedKernelBytes);
  const int64_t table_context_bytes = nearest_gpu->context_bytes;
  const bool is_only_process = used_bytes <= kMaxContextMultiple * table_context_bytes;
  return {.gpu = nearest_gpu,
          .memory_bytes = device.total_bytes,
          .context_bytes = is_only_process ? std::max(loaded_context_bytes, table_context_bytes) : table_context_bytes,
          .is_context_measured = is_only_process && loaded_context_bytes >= table_context_bytes && !is_on_virtual_gpu(),
          .description = std::move(description),
          .other_process_bytes = is_only_process ? 0 : used_bytes - table_context_bytes,
          .num_multiprocessors = device.num_multiprocessors,
          .device_name = device.name};
}

VirtualGpu make_virtual_gpu(const TargetGpu& target) {
  return {.gpu = std::string(target.gpu->name),
          .memory_bytes = kUnlimitedBytes,
          .reported_bytes = target.memory_bytes,
          .num_multiprocessors = target.num_multiprocessors};
}

namespace {

// NCCL's buffers. Per channel and peer, it allocates 512 KiB, 4.7 MiB and 4 MiB for the protocols
// LL, LL128 and Simple (NCCL's init.cc). A rank has two peers in a ring. The number of channels
// depends on the links; 16 is common within a machine. Not measured.
constexpr int64_t kNcclBytesPerChannelAndPeer = 9'650'000;
constexpr int64_t kNumNcclChannels = 16;
constexpr int64_t kNumRingPeers = 2;

/// Memory of oneDNN primitives, MKL buffers, stacks, and small objects of the autograd graph.
/// Measured: docs/explanation/memory.md, "On the CPU".
constexpr int64_t kLibraryBytes = 200'000'000;

constexpr double kBytesPerGigabyte = 1e9;

/// Sets the memory that a process may use on a GPU, and the overhead.
void set_usage(const TargetGpu& target, int64_t world_size, MemoryLimit& limit) {
  limit.allowed_bytes = std::max<int64_t>(0, target.memory_bytes - target.other_process_bytes);
  limit.context_bytes = target.context_bytes;
  if (world_size > 1) limit.communication_bytes = kNcclBytesPerChannelAndPeer * kNumNcclChannels * kNumRingPeers;
}

/// Sets the memory that a process may use on a host.
void set_usage(const TargetHost& target, int64_t /*world_size*/, MemoryLimit& limit) {
  limit.allowed_bytes = target.available_memory.bytes;
  limit.limit_source = target.available_memory.limit_source;
}

void set_host_overhead(const HostMemoryRequirements& requirements, MemoryLimit& limit) {
  limit.process_bytes = requirements.process_bytes;
  // Loader threads skip the samples of other ranks. Meanwhile, such a sample occupies a slot of the
  // queue.
  const int64_t num_skipped_samples = requirements.world_size > 1 ? requirements.num_loader_threads : 0;
  // The loader prefetches at most two steps.
  limit.prefetch_bytes =
      std::min((2 * requirements.samples_per_step + num_skipped_samples) * requirements.largest_sample_bytes,
               compute_prefetch_bytes(limit.allowed_bytes, requirements.process_bytes));
  limit.decoded_samples_bytes =
      limit.prefetch_bytes + requirements.samples_per_step * requirements.largest_sample_bytes +
      requirements.num_loader_threads * (requirements.largest_sample_bytes + requirements.decode_bytes);
  limit.library_bytes = kLibraryBytes;
}

}  // namespace

double get_margin_percent(MemoryMode mode) {
  switch (mode) {
    // The values are documented in memory.mode. Chosen without measurement.
    case MemoryMode::kConservative:
      return 10;
    case MemoryMode::kBalanced:
      return 5;
    case MemoryMode::kAggressive:
      return 2;
  }
  throw InternalError("unknown memory mode");
}

MemoryLimit compute_memory_limit(const PlanTarget& target, MemoryMode mode, std::optional<double> limit_gigabytes,
                                 int64_t world_size) {
  MemoryLimit limit;
  std::visit([&](const auto& device) { set_usage(device, world_size, limit); }, target);
  const auto* const host = std::get_if<TargetHost>(&target);
  if (limit_gigabytes && *limit_gigabytes * kBytesPerGigabyte < static_cast<double>(limit.allowed_bytes)) {
    limit.allowed_bytes = static_cast<int64_t>(*limit_gigabytes * kBytesPerGigabyte);
    if (host != nullptr) limit.limit_source = keys::memory::kLimitGb;
  }
  limit.margin_percent = get_margin_percent(mode);
  limit.margin_bytes = std::llround(static_cast<double>(limit.allowed_bytes) * limit.margin_percent / 100);
  if (host != nullptr) set_host_overhead(host->requirements, limit);
  limit.limit_bytes = std::max<int64_t>(0, limit.allowed_bytes - limit.margin_bytes - limit.overhead_bytes());
  return limit;
}

int64_t compute_prefetch_bytes(int64_t limit_bytes, int64_t used_bytes) {
  // A quarter leaves most of the free memory for tensors. Chosen without measurement.
  constexpr int64_t kPrefetchMemoryDivisor = 4;
  return std::max<int64_t>(1, (limit_bytes - used_bytes) / kPrefetchMemoryDivisor);
}

}  // namespace vlmtrain::planner
