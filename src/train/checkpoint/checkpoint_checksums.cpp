#include "train/checkpoint/checkpoint_checksums.h"

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include <charconv>
#include <exception>
#include <future>
#include <system_error>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;

constexpr const char* kChecksumAlgorithm = "XXH64";
constexpr const char* kChecksumsFile = "trainer_state/checksums.json";

bool is_weight_file(const std::string& name) {
  return name.ends_with(".safetensors");
}

bool should_verify_content(const std::string& name, ChecksumVerificationScope scope) {
  if (scope == ChecksumVerificationScope::kAllFiles) return true;
  return scope == ChecksumVerificationScope::kSmallFiles ? !is_weight_file(name)
                                                         : is_weight_file(name) && name.find('/') == std::string::npos;
}

std::string to_hex(uint64_t number) {
  return fmt::format("{:016x}", number);
}

uint64_t parse_hex_digest(const std::string& digits) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, /*base=*/16);
  if (error != std::errc() || end != digits.data() + digits.size()) throw std::invalid_argument(digits);
  return number;
}

UserError make_checksum_error(const fs::path& file, const std::string& problem) {
  return data_error(
      "{}: {}, so the checkpoint was changed or damaged after it was written; copy it again, or remove {} to use it as "
      "it is",
      file.string(), problem, kChecksumsFile);
}

void verify_file_size(const fs::path& file, const io::Checksum& saved) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  if (error) throw make_checksum_error(file, "is missing");
  if (std::cmp_not_equal(bytes, saved.bytes)) {
    throw make_checksum_error(file, fmt::format("has {} bytes and was saved with {}", bytes, saved.bytes));
  }
}

/// Returns whether the file is missing or has another size, with a warning. Another program has
/// replaced or removed it then: damage by a disk or a copy keeps the size or truncates the file,
/// which its reader reports.
bool warn_if_rewritten(const fs::path& file, const io::Checksum& saved) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  if (!error && std::cmp_equal(bytes, saved.bytes)) return false;
  spdlog::warn("{}: {} since the checkpoint was saved; it is used as it is, and no run can resume from it",
               file.string(),
               error ? "was removed" : fmt::format("was changed from {} to {} bytes", saved.bytes, bytes));
  return true;
}

void verify_file_content(const fs::path& file, const io::Checksum& saved) {
  const io::Checksum actual = io::compute_checksum(file);
  if (actual == saved) return;
  throw make_checksum_error(file, fmt::format("its checksum (XXH64) is {} and was {} when it was saved",
                                              to_hex(actual.xxh64), to_hex(saved.xxh64)));
}

}  // namespace

CheckpointChecksums collect_checksums(const fs::path& folder, const io::ChecksumRecorder& recorder) {
  CheckpointChecksums checksums;
  for (const auto& [path, checksum] : recorder.checksums()) {
    const std::string name = path.lexically_relative(folder).generic_string();
    if (!name.empty() && !name.starts_with("..")) checksums.emplace(name, checksum);
  }
  return checksums;
}

std::string format_checksums(const CheckpointChecksums& checksums) {
  auto files = nlohmann::ordered_json::object();
  for (const auto& [name, checksum] : checksums) {
    files[name] = {{"bytes", checksum.bytes}, {"xxh64", to_hex(checksum.xxh64)}};
  }
  return io::to_json_string(nlohmann::ordered_json{{"algorithm", kChecksumAlgorithm}, {"files", std::move(files)}}, 2) +
         "\n";
}

CheckpointChecksums parse_checksums(const std::string& text, const std::string& source) try {
  const auto json = nlohmann::ordered_json::parse(text);
  if (json.at("algorithm") != kChecksumAlgorithm) throw std::invalid_argument("algorithm");
  CheckpointChecksums checksums;
  for (const auto& [name, file] : json.at("files").items()) {
    checksums[name] = {.bytes = file.at("bytes"), .xxh64 = parse_hex_digest(file.at("xxh64"))};
  }
  return checksums;
} catch (const std::exception&) {
  throw data_error("{}: is not a valid list of checksums, so it was changed or damaged; copy it again", source);
}

void write_checksums(const fs::path& checkpoint, const CheckpointChecksums& checksums) {
  io::write_file(checkpoint / kChecksumsFile, format_checksums(checksums));
}

std::optional<CheckpointChecksums> read_checksums(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kChecksumsFile;
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  return parse_checksums(io::read_file(file), file.string());
}

bool verify_checksums(const fs::path& checkpoint, ChecksumVerificationScope scope) {
  const auto checksums = read_checksums(checkpoint);
  if (!checksums) return false;
  std::vector<std::future<void>> pending_reads;
  // Several readers are faster on disks and network file systems, and compute hashes in parallel.
  // Each takes address space for its stack and heap, so a process with a limit (ulimit -v) uses no
  // threads.
  rlimit address_space{};
  getrlimit(RLIMIT_AS, &address_space);
  const bool can_use_threads = address_space.rlim_cur == RLIM_INFINITY;
  // Chosen without measurement: a few readers keep a disk busy, and each holds a buffer.
  constexpr size_t kMaxConcurrentReads = 4;
  // Waits, in order, until at most `max_pending` reads remain. Rethrows their errors.
  const auto wait_for_pending_reads = [&pending_reads](size_t max_pending) {
    for (size_t i = 0; i + max_pending < pending_reads.size(); ++i) {
      if (pending_reads[i].valid()) pending_reads[i].get();
    }
  };
  for (const auto& [name, saved] : *checksums) {
    if (scope != ChecksumVerificationScope::kModelWeights) verify_file_size(checkpoint / name, saved);
    if (!should_verify_content(name, scope)) continue;
    if (scope == ChecksumVerificationScope::kModelWeights && warn_if_rewritten(checkpoint / name, saved)) continue;
    if (!is_weight_file(name)) {
      verify_file_content(checkpoint / name, saved);
      continue;
    }
    wait_for_pending_reads(kMaxConcurrentReads - 1);
    const auto verify_file = [file = checkpoint / name, saved = saved] { verify_file_content(file, saved); };
    if (!can_use_threads) {
      verify_file();
      continue;
    }
    try {
      pending_reads.push_back(std::async(std::launch::async, verify_file));
    } catch (const std::system_error&) {  // no thread can be started
      verify_file();
    }
  }
  wait_for_pending_reads(0);
  return true;
}

}  // namespace vlmtrain::train
