// Measures how full packs are, compared with best fit decreasing over a whole epoch and with rows
// padded to their longest sample, and how long packing a million lengths takes. Prints a table in
// Markdown.
//
//   packing [RECORDS IMAGE_ROOT PRESET TOKENIZER]
//
// Without arguments it uses log-normal lengths only.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "app/process/model_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/order/draws.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"

namespace {

using namespace vlmtrain;
using data::PackLimits;
using data::SampleSize;

constexpr uint64_t kSeed = 1;

/// Samples with exp(N(5.5, 0.8)) text tokens and zero to four images of one to four tiles with 64
/// tokens each.
std::vector<SampleSize> sample_log_normal_sizes(int64_t count) {
  RandomStream random(kSeed);
  const auto uniform = [&] { return (static_cast<double>(random.uniform(1'000'000)) + 0.5) / 1e6; };
  std::vector<SampleSize> sizes(static_cast<size_t>(count));
  for (auto& size : sizes) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform());
    size.num_media = static_cast<int64_t>(random.uniform(5));
    size.tiles = size.num_media * static_cast<int64_t>(1 + random.uniform(4));
    size.tokens = std::clamp<int64_t>(std::llround(std::exp(5.5 + 0.8 * normal)) + 64 * size.num_media, 8, 4096);
  }
  return sizes;
}

std::vector<SampleSize> read_record_sizes(char** arguments) {
  const app::PresetFolder preset(arguments[2], arguments[3]);
  const auto processor = models::load_processor(preset.path(), models::ProcessorSettings{});
  const auto records = io::open_records(arguments[0], io::RecordSettings{.image_root = arguments[1]});
  const auto sample_index = data::index_samples(
      *records, *processor, {.num_workers = std::max<int64_t>(1, std::thread::hardware_concurrency())});
  std::vector<SampleSize> sizes;
  for (int64_t index = 0; index < sample_index.shapes.size(); ++index) {
    if (const auto shape = sample_index.shapes[index])
      sizes.push_back({.tokens = shape->tokens, .num_media = shape->num_media(), .tiles = shape->pixel_rows});
  }
  return sizes;
}

/// Rows in sampling order, each with as many samples as a pack has on average, padded to its
/// longest.
double compute_padded_fill(const std::vector<SampleSize>& sizes, int64_t batch_size) {
  const auto order = make_random_permutation(std::ssize(sizes), kSeed);
  double used = 0;
  double capacity = 0;
  for (size_t first = 0; first < order.size(); first += static_cast<size_t>(batch_size)) {
    const size_t end = std::min(order.size(), first + static_cast<size_t>(batch_size));
    int64_t longest = 0;
    for (size_t i = first; i < end; ++i) {
      const int64_t tokens = sizes[static_cast<size_t>(order[i])].tokens;
      used += static_cast<double>(tokens);
      longest = std::max(longest, tokens);
    }
    capacity += static_cast<double>(longest) * static_cast<double>(end - first);
  }
  return used / capacity;
}

void print_row(const std::string& name, const std::vector<SampleSize>& sizes, PackLimits limits) {
  const auto order = make_random_permutation(std::ssize(sizes), kSeed);
  const auto start = std::chrono::steady_clock::now();
  const auto packs = data::make_packs(order, sizes, limits, kSeed);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  PackLimits unlimited = limits;
  unlimited.window_size = std::ssize(sizes);
  const auto best =
      data::compute_pack_statistics(data::make_packs(order, sizes, unlimited, kSeed), sizes, unlimited).fill;
  const auto fill = data::compute_pack_statistics(packs, sizes, limits).fill;
  const int64_t samples_per_pack = std::max<int64_t>(1, std::ssize(sizes) / fill.num_packs);
  fmt::print("| {} | {} | {} / {} | {} | {:.1f} % | {:.1f} % | {:.3f} | {:.0f} % | {} | {:.1f} % | {:.2f} |\n", name,
             sizes.size(), limits.max_tokens, limits.max_media, fill.num_packs, 100 * fill.token_fill,
             100 * fill.media_fill, static_cast<double>(best.num_packs) / static_cast<double>(fill.num_packs),
             100.0 * static_cast<double>(fill.num_media_limited_packs) / static_cast<double>(fill.num_packs),
             fill.max_tiles, 100 * compute_padded_fill(sizes, samples_per_pack), seconds);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    fmt::print(
        "| samples | number | limits: tokens / images | packs | tokens taken | images taken | of best fit decreasing "
        "over the epoch | packs bound by images | most tiles of a pack | padded to the longest | seconds |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n");
    const std::vector<PackLimits> limit_options{{.max_tokens = 4096, .max_media = 18},
                                                {.max_tokens = 4096, .max_media = 64}};
    if (argc == 5) {
      const auto sizes = read_record_sizes(argv + 1);
      for (const PackLimits& limits : limit_options) print_row(argv[3], sizes, limits);
    }
    for (const PackLimits& limits : limit_options)
      print_row("log-normal, 0 to 4 images", sample_log_normal_sizes(10'000), limits);
    print_row("log-normal, 0 to 4 images", sample_log_normal_sizes(1'000'000), limit_options.front());
  } catch (const UserError& error) {
    fmt::print(stderr, "packing: {}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
