// Opens a data set and reads records at random, by blocks if it has them, on two threads; prints
// the resident memory as JSON. bench/data_memory.py makes the data and runs it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "vlmtrain/base/hash.h"
#include "vlmtrain/io/records.h"

namespace {

using namespace vlmtrain;

double status_mb(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1000;
  }
  return 0;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Blocks in random order, with their records.
std::vector<int64_t> make_read_order(const io::Records& records) {
  std::vector<int64_t> block_starts = records.block_starts();
  if (block_starts.empty()) return make_random_permutation(records.size(), 1);
  block_starts.push_back(records.size());
  std::vector<int64_t> order;
  for (const int64_t block : make_random_permutation(std::ssize(block_starts) - 1, 1)) {
    const auto begin = block_starts[static_cast<size_t>(block)];
    for (const int64_t record : make_random_permutation(block_starts[static_cast<size_t>(block) + 1] - begin, 2))
      order.push_back(begin + record);
  }
  return order;
}

}  // namespace

int main(int, char** arguments) {
  const auto start = std::chrono::steady_clock::now();
  const auto records = io::open_records(arguments[1], {});
  const double open_seconds = seconds_since(start);
  const double after_open_mb = status_mb("VmRSS");
  auto order = make_read_order(*records);
  order.resize(std::min<size_t>(order.size(), std::stoul(arguments[2])));

  const auto read_start = std::chrono::steady_clock::now();
  std::vector<double> resident_mb;
  std::atomic<int64_t> bad = 0;
  for (size_t tenth = 0; tenth < 10; ++tenth) {
    std::atomic<size_t> next = tenth * order.size() / 10;
    const size_t end = (tenth + 1) * order.size() / 10;
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&] {
        for (size_t i = next++; i < end; i = next++) bad += records->at(order[i]).problem.empty() ? 0 : 1;
      });
    }
    threads.clear();
    resident_mb.push_back(status_mb("VmRSS"));
  }
  fmt::print(
      "{{\"records\": {}, \"bad\": {}, \"open_seconds\": {}, \"opened_mb\": {}, \"resident_mb\": [{}], \"most_mb\": "
      "{}, "
      "\"records_per_second\": {}}}\n",
      records->size(), bad.load(), open_seconds, after_open_mb, fmt::join(resident_mb, ", "), status_mb("VmHWM"),
      static_cast<double>(order.size()) / seconds_since(read_start));
  return bad == 0 ? 0 : 1;
}
