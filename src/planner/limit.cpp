#include "vlmtrain/planner/limit.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <tuple>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/number_behind.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::planner {

namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kPageBytes = 2 * kMiB;  // what drivers hand out
/// What drivers report of a card's nominal size.
constexpr double kReportedShare = 0.98;

/// What is taken of a card before anything was allocated there is a context, up to this many of the table's.
constexpr int64_t kMostContexts = 2;
/// How much a context grows by when a step's kernels are loaded: 203 MiB on an H200 (src/memory/gpu_list.h).
constexpr int64_t kLoadedLater = 208 * kMiB;

// NCCL allocates for each channel and peer 512 KiB, 4.7 MiB and 4 MiB (protocols LL, LL128 and Simple; NCCL's init.cc),
// on a ring of two peers. How many channels it opens depends on the links; 16 is common inside a machine. Not measured.
constexpr int64_t kNcclBytesPerChannelAndPeer = 9'650'000;
constexpr int64_t kNcclChannels = 16;
constexpr int64_t kRingPeers = 2;

struct SizeClass {
  double up_to_gigabytes;
  const char* gpu;
};

/// The common card by size, for architecture and rates.
constexpr std::array kSizeClasses{SizeClass{24, "rtx4090"}, SizeClass{32, "rtx5090"}, SizeClass{40, "a100-40"},
                                  SizeClass{48, "a6000"},   SizeClass{80, "h100"},    SizeClass{141, "h200"},
                                  SizeClass{1024, "b200"}};

/// Small, without what goes without saying: of "NVIDIA GeForce RTX 4090" rtx and 4090.
std::vector<std::string> words_of(std::string_view name) {
  constexpr std::array<std::string_view, 4> kBrands{"nvidia", "geforce", "tesla", "gpu"};
  std::vector<std::string> words(1);
  for (const unsigned char letter : name) {
    if (std::isalnum(letter) != 0) {
      words.back() += static_cast<char>(std::tolower(letter));
    } else {
      words.emplace_back();
    }
  }
  std::ranges::replace(words, "mobile", "laptop");
  std::erase_if(words, [&](const std::string& word) {
    return word.empty() || std::ranges::find(kBrands, word) != kBrands.end();
  });
  return words;
}

/// The card that these words name, or else those whose names begin with them.
std::vector<const memory::Gpu*> gpus_of_words(const std::vector<std::string>& words) {
  std::vector<const memory::Gpu*> called;
  std::vector<const memory::Gpu*> begin_so;
  if (words.empty()) return called;
  const std::string joined = fmt::format("{}", fmt::join(words, ""));
  const auto is_called = [&](const std::vector<std::string>& own) {
    const std::string name = fmt::format("{}", fmt::join(own, ""));
    return joined == name || "rtx" + joined == name;
  };
  for (const auto& gpu : memory::gpus()) {
    const auto device_words = words_of(gpu.device_name);
    if (is_called(words_of(gpu.name)) || is_called(device_words)) called.push_back(&gpu);
    if (std::ranges::mismatch(words, device_words).in1 == words.end()) begin_so.push_back(&gpu);
  }
  return called.empty() ? begin_so : called;
}

/// Whether a card is sold as one of so many gigabytes; drivers report a little less.
bool is_sold_with(const memory::Gpu& gpu, int64_t gigabytes) {
  const double missing = static_cast<double>(gigabytes) - static_cast<double>(gpu.memory_bytes) / kGiB;
  return missing >= 0 && missing < static_cast<double>(gigabytes) / 8;
}

/// The cards that a name may mean, of the table or as people and drivers write it: RTX 4090, 4090, "H100 80GB",
/// "3060 12 GB", "4080 mobile".
std::vector<const memory::Gpu*> gpus_that_are_meant(const std::string& name) {
  if (const auto* const gpu = memory::find_gpu(name)) return {gpu};
  auto words = words_of(name);
  auto found = gpus_of_words(words);
  if (found.empty() && !words.empty()) {
    if (words.back() == "gb") words.pop_back();
    if (words.empty()) return {};
    const auto size = number_behind("", words.back().substr(0, words.back().find("gb")));
    if (!size) return {};
    words.pop_back();
    found = gpus_of_words(words);
    std::erase_if(found, [&](const memory::Gpu* gpu) { return !is_sold_with(*gpu, *size); });
  }
  return found;
}

[[noreturn]] void refuse_gpu(const std::string& name, const std::vector<const memory::Gpu*>& meant) {
  const auto sorted = [](const auto& gpus, const auto& name_of) {
    std::vector<std::string> names(gpus.size());
    std::ranges::transform(gpus, names.begin(),
                           [&](const auto& gpu) { return std::string(std::invoke(name_of, gpu)); });
    std::ranges::sort(names);
    return names;
  };
  const auto listed = [](const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); };
  if (!meant.empty()) {
    const auto names = sorted(meant, [](const memory::Gpu* gpu) { return gpu->name; });
    throw usage_error("gpu {}: there are several: {}; name one of them", name, listed(names));
  }
  const auto known = sorted(memory::gpus(), &memory::Gpu::name);
  const auto slices = sorted(memory::slices(), &memory::Gpu::name);
  std::vector<std::string> all;
  std::ranges::set_union(known, slices, std::back_inserter(all));
  const auto near = nearest(name, all);
  const std::string remedy = near ? fmt::format("did you mean {}? ", *near) : "";
  if (name.find("mig") != std::string::npos) {
    throw usage_error("gpu {}: unknown; {}the known MIG instances are {}; a run on another takes what its driver says",
                      name, remedy, listed(slices));
  }
  throw usage_error("gpu {}: unknown; {}for another card vlmtrain plan takes --gpu-gb; the known ones are {}", name,
                    remedy, listed(known));
}

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.2f} GB", in_gigabytes(bytes));
}

}  // namespace

TargetCard card_by_name(const std::string& name) {
  if (const auto* const old = memory::find_old_gpu(name); old != nullptr) {
    throw usage_error(
        "gpu {}: {} has compute capability {}.{}, and LibTorch for CUDA 13 has no code for cards below 7.5 (Turing: "
        "T4, RTX 20); no run on it is possible: plan for a newer card, such as --gpu t4, or train on the CPU (--device "
        "cpu)",
        name, old->device_name, old->architecture / 10, old->architecture % 10);
  }
  const auto meant = gpus_that_are_meant(name);
  if (meant.size() != 1) refuse_gpu(name, meant);
  const memory::Gpu* const gpu = meant.front();
  return {.gpu = gpu,
          .memory_bytes = gpu->memory_bytes,
          .context_bytes = gpu->context_bytes,
          .context_measured = gpu->context_measured,
          .description = fmt::format("{} ({})", gpu->device_name, gigabytes(gpu->memory_bytes)),
          .device_name = std::string(gpu->device_name)};
}

TargetCard card_of_size(double nominal_gigabytes) {
  constexpr double kLeast = 1;
  constexpr double kMost = 1024;
  if (!(nominal_gigabytes >= kLeast && nominal_gigabytes <= kMost)) {
    throw usage_error("gpu-gb {}: must be a card's size in gigabytes, from {} to {}", nominal_gigabytes, kLeast, kMost);
  }
  const auto* const size_class =
      std::find_if(kSizeClasses.begin(), kSizeClasses.end(),
                   [&](const SizeClass& candidate) { return nominal_gigabytes <= candidate.up_to_gigabytes; });
  const memory::Gpu* const gpu = memory::find_gpu(size_class->gpu);
  const auto pages = static_cast<int64_t>(std::floor(nominal_gigabytes * kGiB * kReportedShare / kPageBytes));
  const int64_t bytes = pages * kPageBytes;
  return {gpu, bytes, gpu->context_bytes, gpu->context_measured,
          fmt::format("a card of {:g} GB (its driver reports about {}; architecture and speed of an {})",
                      nominal_gigabytes, gigabytes(bytes), gpu->device_name)};
}

bool computes_in(const memory::Gpu& gpu, engine::Precision precision) {
  return precision != engine::Precision::kBf16 || gpu.bf16_operations > 0;
}

TargetCard card_of_device(const memory::DeviceDescription& device) {
  if (!memory::has_kernel_code(device.architecture)) {
    throw run_error("{}: LibTorch for CUDA 13 has no code for compute capability {}.{}; take another card", device.name,
                    device.architecture / 10, device.architecture % 10);
  }
  // A MIG instance that is not in the table is a part of the card that its name begins with.
  const std::string whole_name = device.name.substr(0, device.name.find(" MIG "));
  const auto unlike = [&](const memory::Gpu& gpu) {
    return std::tuple(gpu.device_name != device.name, gpu.device_name != whole_name,
                      gpu.architecture > device.architecture, std::abs(gpu.architecture - device.architecture),
                      std::abs(gpu.multiprocessors - device.multiprocessors));
  };
  std::vector<const memory::Gpu*> gpus;
  for (const auto& gpu : memory::gpus()) gpus.push_back(&gpu);
  for (const auto& gpu : memory::slices()) {
    if (gpu.device_name == device.name) gpus.push_back(&gpu);
  }
  const memory::Gpu* const nearest_gpu = *std::ranges::min_element(
      gpus, [&](const auto* left, const auto* right) { return unlike(*left) < unlike(*right); });
  std::string description = fmt::format("{} ({})", device.name, gigabytes(device.total_bytes));
  if (nearest_gpu->device_name != device.name) {
    description +=
        fmt::format(", planned as {} with {} multiprocessors", nearest_gpu->device_name, device.multiprocessors);
  }
  // Kernels are loaded when they are first used, so a context at the start is smaller than later. The driver does not
  // say whose memory is taken.
  const int64_t taken = device.total_bytes - device.free_bytes;
  const int64_t at_the_end = taken + (on_virtual_card() ? 0 : kLoadedLater);
  const int64_t assumed = nearest_gpu->context_bytes;
  const bool alone = taken <= kMostContexts * assumed;
  return {.gpu = nearest_gpu,
          .memory_bytes = device.total_bytes,
          .context_bytes = alone ? std::max(at_the_end, assumed) : assumed,
          .context_measured = alone && at_the_end >= assumed && !on_virtual_card(),
          .description = std::move(description),
          .others_bytes = alone ? 0 : taken - assumed,
          .multiprocessors = device.multiprocessors,
          .device_name = device.name};
}

double margin_percent(Mode mode) {
  switch (mode) {
    case Mode::kConservative:
      return 10;
    case Mode::kBalanced:
      return 5;
    case Mode::kAggressive:
      return 2;
  }
  throw InternalError("unknown mode");
}

MemoryLimit limit_of(const TargetCard& card, Mode mode, std::optional<double> limit_gigabytes, int64_t world_size) {
  MemoryLimit limit;
  limit.card_bytes = std::max<int64_t>(0, card.memory_bytes - card.others_bytes);
  if (limit_gigabytes) limit.card_bytes = std::min(limit.card_bytes, static_cast<int64_t>(*limit_gigabytes * 1e9));
  limit.context_bytes = card.context_bytes;
  if (world_size > 1) limit.communication_bytes = kNcclBytesPerChannelAndPeer * kNcclChannels * kRingPeers;
  limit.margin_percent = margin_percent(mode);
  limit.margin_bytes = std::llround(static_cast<double>(limit.card_bytes) * limit.margin_percent / 100);
  limit.limit_bytes =
      std::max<int64_t>(0, limit.card_bytes - limit.context_bytes - limit.communication_bytes - limit.margin_bytes);
  return limit;
}

}  // namespace vlmtrain::planner
