#include "train/shared_outlines.h"

#include <exception>
#include <fstream>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/user_cache.h"

namespace vlmtrain::train {

namespace fs = std::filesystem;

fs::path shared_outlines(const std::string& data_set, int64_t samples) {
  constexpr int64_t kWorthKeeping = 10'000;
  const fs::path cache = io::user_cache();
  std::error_code error;
  const fs::path here = fs::current_path(error);
  if (samples < kWorthKeeping || cache.empty() || error) return {};
  const fs::path folder = cache / "outlines";
  fs::create_directories(folder, error);
  if (error) return {};
  io::clean_leftovers(folder);
  return folder / (ContentHash().add((here / data_set).native()).text() + ".jsonl");
}

void copy_outlines(const fs::path& from, const fs::path& to) {
  try {
    std::ifstream source(from, std::ios::binary);
    if (!source) throw run_error("{} cannot be read", from.string());
    io::AtomicFile copy(to);
    std::string block(size_t{1} << 20U, '\0');
    do {
      source.read(block.data(), std::ssize(block));
      copy.write(std::string_view(block).substr(0, static_cast<size_t>(source.gcount())));
    } while (source);
    copy.commit();
  } catch (const std::exception& problem) {
    spdlog::info("what was found out about the data is not kept in {}: {}", to.string(), problem.what());
  }
}

}  // namespace vlmtrain::train
