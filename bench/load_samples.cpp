// Draws global batches from a data set as a training run does (decode, resize, tokenize on loader threads; joined on
// the caller's) and prints how fast, as JSON. bench/images_per_second.py makes the data and runs it.
//
//   load_samples bytes|floats CHECKPOINT DATA IMAGE_ROOT WORKERS BATCH BATCHES
//
// bytes: pixels as training copies them to the device, which normalises them; floats: the threads normalise them too,
// as loaders in Python do.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "vlmtrain/data/loader.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/models/checkpoint.h"

namespace {

using namespace vlmtrain;

double resident_mb(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1000;
  }
  return 0;
}

/// What a processor makes, with pixels in fp32.
class Normalized final : public data::SampleProcessor {
 public:
  explicit Normalized(const data::SampleProcessor& processor) : processor_(processor) {}

  data::Sample process(const io::Record& record, int64_t index) const override {
    data::Sample sample = processor_.process(record, index);
    if (sample.pixel_values.defined()) sample.pixel_values = sample.pixel_values.to(at::kFloat).sub_(116).div_(68);
    return sample;
  }
  data::Sample outline(const io::Record& record, int64_t index) const override {
    return processor_.outline(record, index);
  }

 private:
  const data::SampleProcessor& processor_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 8) {
    fmt::print(stderr, "load_samples bytes|floats CHECKPOINT DATA IMAGE_ROOT WORKERS BATCH BATCHES\n");
    return 2;
  }
  at::set_num_threads(1);
  const auto processor = models::load_processor(arguments[2], {});
  const Normalized normalized(*processor);
  const bool as_floats = std::string(arguments[1]) == "floats";
  const auto records = io::open_records(arguments[3], {.image_root = arguments[4]});
  const data::DrawOrder order(records->size(), /*seed=*/0);
  data::Ledger ledger(arguments[3], records->size());
  const int64_t batches = std::stol(arguments[7]);
  const double before_mb = resident_mb("VmRSS");

  const auto start = std::chrono::steady_clock::now();
  data::Loader loader(*records, as_floats ? normalized : static_cast<const data::SampleProcessor&>(*processor), order,
                      {.global_batch_size = std::stol(arguments[6]), .num_workers = std::stol(arguments[5])}, {},
                      ledger);
  int64_t images = 0;
  int64_t tokens = 0;
  double checksum = 0;
  std::vector<double> resident;
  for (int64_t i = 0; i < batches; ++i) {
    const auto batch = loader.next();
    const auto joined = data::collate(batch.samples);
    images += joined.images;
    tokens += joined.tokens();
    checksum += joined.pixel_values.flatten()[0].item<double>();
    if (i % std::max<int64_t>(1, batches / 10) == 0) resident.push_back(resident_mb("VmRSS"));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(
      "{{\"images\": {}, \"tokens\": {}, \"seconds\": {}, \"checksum\": {}, \"before_mb\": {}, \"resident_mb\": [{}], "
      "\"most_mb\": {}}}\n",
      images, tokens, seconds, checksum, before_mb, fmt::join(resident, ", "), resident_mb("VmHWM"));
  return 0;
}
