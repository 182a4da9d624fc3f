// How full packs are, beside best fit decreasing over a whole epoch and beside rows padded to their longest sample; and
// how long a million lengths take. Prints a table in Markdown.
//
//   packing [RECORDS IMAGE_ROOT PRESET TOKENIZER]
//
// Without arguments of log-normal lengths alone.

#include "vlmtrain/data/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "app/preset_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/data/outlines.h"
#include "vlmtrain/data/pack_census.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/models/checkpoint.h"

namespace {

using namespace vlmtrain;
using data::PackLimits;
using data::SampleSize;

constexpr uint64_t kSeed = 1;

/// Text of exp(N(5.5, 0.8)) tokens and none to four pictures of 64 tokens in one to four tiles.
std::vector<SampleSize> log_normal_sizes(int64_t count) {
  RandomStream random(kSeed);
  const auto uniform = [&] { return (static_cast<double>(random.below(1'000'000)) + 0.5) / 1e6; };
  std::vector<SampleSize> sizes(static_cast<size_t>(count));
  for (auto& size : sizes) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform());
    size.images = static_cast<int64_t>(random.below(5));
    size.tiles = size.images * static_cast<int64_t>(1 + random.below(4));
    size.tokens = std::clamp<int64_t>(std::llround(std::exp(5.5 + 0.8 * normal)) + 64 * size.images, 8, 4096);
  }
  return sizes;
}

std::vector<SampleSize> sizes_of_records(char** arguments) {
  const app::PresetFolder preset(arguments[2], arguments[3]);
  const auto processor = models::load_processor(preset.path(), models::ProcessorSettings{});
  const auto records = io::open_records(arguments[0], io::RecordSettings{.image_root = arguments[1]});
  const auto outlines = data::outline_samples(*records, *processor,
                                              {.workers = std::max<int64_t>(1, std::thread::hardware_concurrency())});
  std::vector<SampleSize> sizes;
  for (int64_t index = 0; index < outlines.shapes.size(); ++index) {
    if (const auto shape = outlines.shapes[index])
      sizes.push_back({.tokens = shape->tokens, .images = shape->images, .tiles = shape->pixel_rows});
  }
  return sizes;
}

/// Rows of as many samples as a pack has on average, in the order in which they are drawn, each as long as its longest.
double fill_when_padded(const std::vector<SampleSize>& sizes, int64_t rows_of_batch) {
  const auto order = permutation(std::ssize(sizes), kSeed);
  double used = 0;
  double taken = 0;
  for (size_t first = 0; first < order.size(); first += static_cast<size_t>(rows_of_batch)) {
    const size_t end = std::min(order.size(), first + static_cast<size_t>(rows_of_batch));
    int64_t longest = 0;
    for (size_t i = first; i < end; ++i) {
      const int64_t tokens = sizes[static_cast<size_t>(order[i])].tokens;
      used += static_cast<double>(tokens);
      longest = std::max(longest, tokens);
    }
    taken += static_cast<double>(longest) * static_cast<double>(end - first);
  }
  return used / taken;
}

void print_row(const std::string& name, const std::vector<SampleSize>& sizes, PackLimits limits) {
  const auto order = permutation(std::ssize(sizes), kSeed);
  const auto start = std::chrono::steady_clock::now();
  const auto packs = data::pack(order, sizes, limits, kSeed);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  PackLimits whole = limits;
  whole.window = std::ssize(sizes);
  const auto best = data::census_of(data::pack(order, sizes, whole, kSeed), sizes, whole).fill;
  const auto fill = data::census_of(packs, sizes, limits).fill;
  const int64_t samples_of_pack = std::max<int64_t>(1, std::ssize(sizes) / fill.packs);
  fmt::print("| {} | {} | {} / {} | {} | {:.1f} % | {:.1f} % | {:.3f} | {:.0f} % | {} | {:.1f} % | {:.2f} |\n", name,
             sizes.size(), limits.tokens, limits.images, fill.packs, 100 * fill.tokens, 100 * fill.images,
             static_cast<double>(best.packs) / static_cast<double>(fill.packs),
             100.0 * static_cast<double>(fill.bound_by_media) / static_cast<double>(fill.packs), fill.most_tiles,
             100 * fill_when_padded(sizes, samples_of_pack), seconds);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    fmt::print(
        "| samples | number | limits: tokens / images | packs | tokens taken | images taken | of best fit decreasing "
        "over the epoch | packs bound by images | most tiles of a pack | padded to the longest | seconds |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n");
    const std::vector<PackLimits> both{{.tokens = 4096, .images = 18}, {.tokens = 4096, .images = 64}};
    if (count == 5) {
      const auto sizes = sizes_of_records(arguments + 1);
      for (const PackLimits& limits : both) print_row(arguments[3], sizes, limits);
    }
    for (const PackLimits& limits : both) print_row("log-normal, 0 to 4 images", log_normal_sizes(10'000), limits);
    print_row("log-normal, 0 to 4 images", log_normal_sizes(1'000'000), both.front());
  } catch (const UserError& error) {
    fmt::print(stderr, "packing: {}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
