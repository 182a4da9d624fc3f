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

fs::path get_shared_index_file(const std::string& dataset, int64_t samples) {
  constexpr int64_t kMinCachedSamples = 10'000;
  const fs::path cache = io::get_user_cache_folder();
  std::error_code error;
  const fs::path current_folder = fs::current_path(error);
  if (samples < kMinCachedSamples || cache.empty() || error) return {};
  const fs::path folder = cache / "outlines";
  fs::create_directories(folder, error);
  if (error) return {};
  io::clean_up_temporaries(folder);
  return folder / (ContentHash().add((current_folder / dataset).native()).hex() + ".jsonl");
}

void copy_index_file(const fs::path& source_file, const fs::path& target_file) {
  try {
    std::ifstream source(source_file, std::ios::binary);
    if (!source) throw run_error("{} cannot be read", source_file.string());
    io::AtomicFile copy(target_file);
    std::string block(size_t{1} << 20U, '\0');
    do {
      source.read(block.data(), std::ssize(block));
      copy.write(std::string_view(block).substr(0, static_cast<size_t>(source.gcount())));
    } while (source);
    copy.commit();
  } catch (const std::exception& problem) {
    spdlog::info("what was found out about the data is not kept in {}: {}", target_file.string(), problem.what());
  }
}

}  // namespace vlmtrain::train
