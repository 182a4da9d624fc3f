// Reads scans like the loader's threads and prints the speed as JSON.
// bench/compare_monai_volumes.py makes the scans and runs it.
//
//   read_volumes PIPELINE THREADS SECONDS SCAN…
//
// PIPELINE: whole (the field of view to 96³), spacing (to 1.5 mm, 96³ from the center) or
// percentile (as whole).
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "vlmtrain/image/volume.h"

namespace {

using namespace vlmtrain;
using Clock = std::chrono::steady_clock;

double resident_mb(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1000;
  }
  return 0;
}

image::VolumeSettings make_settings(const std::string& pipeline) {
  image::VolumeSettings settings;
  if (pipeline == "spacing") settings.spacing = image::PerAxis<double>{1.5, 1.5, 1.5};
  if (pipeline == "percentile") settings.normalization = image::VolumeNormalization::kPercentile;
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    fmt::print(stderr, "read_volumes PIPELINE THREADS SECONDS SCAN…\n");
    return 2;
  }
  at::set_num_threads(1);
  const image::VolumeSettings settings = make_settings(argv[1]);
  const std::vector<std::string> scans(argv + 4, argv + argc);
  const double seconds = std::stod(argv[3]);
  const double initial_mb = resident_mb("VmRSS");
  std::atomic<int64_t> next = 0;
  std::atomic<double> checksum = 0;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<std::thread> threads;
  for (int i = 0; i < std::stoi(argv[2]); ++i) {
    threads.emplace_back([&] {
      while (elapsed() < seconds) {
        const at::Tensor volume = image::read_volume(scans[next++ % scans.size()], settings);
        checksum = volume.const_data_ptr<float>()[volume.numel() / 2 + 48 * 97];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  fmt::print("{{\"volumes\": {}, \"seconds\": {}, \"checksum\": {}, \"before_mb\": {}, \"most_mb\": {}}}\n",
             next.load(), elapsed(), checksum.load(), initial_mb, resident_mb("VmHWM"));
  return 0;
}
