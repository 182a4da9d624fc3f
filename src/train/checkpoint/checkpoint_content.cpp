#include "train/checkpoint/checkpoint_content.h"

#include <sys/resource.h>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

namespace {

/// Returns whether a tensor of the optimizer's state does not change until the next update, for which
/// asynchronous saving makes training wait.
bool is_saved_in_place(const at::Tensor& tensor, const engine::Optimizer& optimizer) {
  return optimizer.host_bytes() > 0 && tensor.is_cpu();
}

/// Copies of tensors in host memory, or the tensors themselves if they are saved in place. A tensor that
/// is requested twice is copied once.
class HostCopyCache {
 public:
  explicit HostCopyCache(const engine::Optimizer& optimizer) : optimizer_(optimizer) {}

  nn::StoredTensor get(const nn::StoredTensor& tensor) {
    return {get(tensor.values), tensor.low_bits.defined() ? get(tensor.low_bits) : at::Tensor()};
  }

 private:
  const at::Tensor& get(const at::Tensor& tensor) {
    if (is_saved_in_place(tensor, optimizer_)) return tensor;
    auto& [original, host_copy] = host_copies_[tensor.unsafeGetTensorImpl()];
    if (!host_copy.defined()) {
      original = tensor;
      host_copy = tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
    return host_copy;
  }

  struct Entry {
    at::Tensor original, host_copy;  // the original is kept so that its address stays unique
  };
  const engine::Optimizer& optimizer_;
  std::map<const at::TensorImpl*, Entry> host_copies_;
};

using StoredTensors = std::vector<std::pair<std::string, nn::StoredTensor>>;

/// Returns a tensor of the optimizer's file. Masters in two halves are joined when they are written.
io::LazyTensor make_lazy_tensor(const std::string& name, const nn::StoredTensor& tensor) {
  const auto shared_tensor = std::make_shared<nn::StoredTensor>(tensor);
  return {.name = name,
          .dtype = tensor.dtype(),
          .shape = tensor.values.sizes().vec(),
          .materialize = [shared_tensor] { return shared_tensor->read_on_host(); },
          .on_written = [shared_tensor] { *shared_tensor = {}; }};
}

/// Returns `tensors`, the optimizer's state, together with the fp32 masters of the weights whose
/// model file has another data type, unless the state has them. `master_weights`: the masters by
/// parameter, whole or shards (engine::parse_shard_name).
io::LazyTensors make_optimizer_tensors(const models::VisionLanguageModel& model, const StoredTensors& tensors,
                                       const StoredTensors& master_weights,
                                       const models::CheckpointSaveOptions& save_options) {
  io::LazyTensors result;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    names.insert(name);
    result.push_back(make_lazy_tensor(name, tensor));
  }
  std::map<std::string, const nn::Parameter*> parameters;
  for (const auto& parameter : model.parameters().all()) parameters.emplace(parameter.name, &parameter);
  for (const auto& [name, values] : master_weights) {
    const auto piece = engine::parse_shard_name(name);
    const nn::Parameter& parameter = *parameters.at(piece ? piece->first : name);
    if (values.dtype() != at::kFloat || names.contains("master." + name) ||
        models::choose_save_dtype(parameter, save_options) == at::kFloat)
      continue;
    result.push_back(make_lazy_tensor("master." + name, values));
  }
  return result;
}

}  // namespace

CheckpointContent make_checkpoint_content(const RunState& state, const models::VisionLanguageModel& model,
                                          const engine::Optimizer& optimizer, const data::Ledger& ledger,
                                          const models::BaseWeights& base, std::optional<at::ScalarType> dtype,
                                          ParameterValueStorage values) {
  const at::NoGradGuard no_gradients;
  auto master_weights = optimizer.master_weights();
  auto tensors = optimizer.state();
  if (values == ParameterValueStorage::kCopied) {
    HostCopyCache copies(optimizer);
    for (auto* list : {&master_weights, &tensors}) {
      for (auto& [name, tensor] : *list) tensor = copies.get(tensor);
    }
  }
  models::CheckpointSaveOptions save_options{.base = &base, .dtype = dtype, .master_weights = {}};
  // With a sharded optimizer, a rank has only a part of the master weights. The saved weights then
  // come from the weights that it computes with.
  if (optimizer.shard().covers_all()) save_options.master_weights = {master_weights.begin(), master_weights.end()};
  CheckpointContent content;
  content.step = state.step;
  content.best_step = state.evaluation.best_step;
  content.model = model.parameters().lora() ? models::make_adapter_contents(model, save_options)
                                            : models::make_checkpoint_contents(model, save_options, base.folder());
  content.model.base_fingerprint = format_setting_value(state.fingerprint, kBaseWeightsKey);
  content.optimizer = make_optimizer_tensors(model, tensors, master_weights, save_options);
  content.ledger = io::to_json_string(ledger.to_json(), 2) + "\n";
  content.state = format_run_state(state);
  return content;
}

int64_t compute_host_copy_bytes(const engine::Optimizer& optimizer) {
  std::map<const at::TensorImpl*, int64_t> bytes;
  for (const auto& tensors : {optimizer.master_weights(), optimizer.state()}) {
    for (const auto& [name, tensor] : tensors) {
      for (const at::Tensor& part : {tensor.values, tensor.low_bits}) {
        if (part.defined() && !is_saved_in_place(part, optimizer))
          bytes[part.unsafeGetTensorImpl()] = static_cast<int64_t>(part.nbytes());
      }
    }
  }
  int64_t sum = 0;
  for (const auto& [tensor, count] : bytes) sum += count;
  return sum;
}

int64_t compute_write_buffer_bytes(const models::VisionLanguageModel& model) {
  int64_t max_bytes = 0;
  for (const auto& parameter : model.parameters().all()) {
    max_bytes = std::max(max_bytes, parameter.elements() * static_cast<int64_t>(sizeof(float)));
  }
  return max_bytes;
}

namespace {

// Keys in the metadata of a shard's safetensors file.
constexpr const char* kShardKey = "part";
constexpr const char* kStepKey = "step";

/// Returns "?" for a missing key, for messages.
std::string get_metadata_value(const io::SafetensorsFile& file, const char* key) {
  const auto it = file.metadata().find(key);
  return it == file.metadata().end() ? "?" : it->second;
}

/// Returns the number of shards according to their file names; nullopt if there are no shards.
/// Throws UserError (kBadData) if names disagree.
std::optional<int64_t> count_shards(const std::filesystem::path& folder) {
  std::optional<int64_t> num_shards;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    long long number = 0, count = 0;
    if (std::sscanf(name.c_str(), "optimizer-%5lld-of-%5lld.safetensors", &number, &count) != 2) continue;
    if (number < 1 || number > count || name != make_optimizer_file_name(number - 1, count)) continue;
    if (num_shards && *num_shards != count) {
      throw data_error("{}: has optimizer states in {} and in {} shards; copy the checkpoint again", folder.string(),
                       std::min(*num_shards, int64_t{count}), std::max(*num_shards, int64_t{count}));
    }
    num_shards = count;
  }
  return num_shards;
}

}  // namespace

std::string make_optimizer_file_name(int64_t rank, int64_t num_shards) {
  return num_shards == 1 ? "optimizer.safetensors"
                         : fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank + 1, num_shards);
}

std::vector<std::filesystem::path> find_optimizer_files(const std::filesystem::path& trainer_state) {
  const auto unsharded_file = trainer_state / make_optimizer_file_name(0, 1);
  const auto num_shards = count_shards(trainer_state);
  if (num_shards && std::filesystem::exists(unsharded_file)) {
    throw data_error("{}: has an optimizer state in {} shards and an unsharded one; copy the checkpoint again",
                     trainer_state.string(), *num_shards);
  }
  if (!num_shards) return {unsharded_file};
  std::vector<std::filesystem::path> files;
  for (int64_t rank = 0; rank < *num_shards; ++rank) {
    files.push_back(trainer_state / make_optimizer_file_name(rank, *num_shards));
    if (std::filesystem::exists(files.back())) continue;
    throw data_error("{}: is missing, one of the {} shards of the optimizer state; copy the checkpoint again",
                     files.back().string(), *num_shards);
  }
  return files;
}

std::vector<io::SafetensorsFile> open_optimizer_files(const std::filesystem::path& trainer_state) {
  std::vector<io::SafetensorsFile> files;
  for (const auto& path : find_optimizer_files(trainer_state)) files.emplace_back(path);
  if (files.size() == 1) return files;
  const std::string step = get_metadata_value(files.front(), kStepKey);
  for (size_t i = 0; i < files.size(); ++i) {
    if (get_metadata_value(files[i], kShardKey) != std::to_string(i + 1)) {
      throw data_error("{}: contains shard {} of the optimizer state; copy the checkpoint again",
                       files[i].path().string(), get_metadata_value(files[i], kShardKey));
    }
    if (get_metadata_value(files[i], kStepKey) != step) {
      throw data_error("{}: is from step {}, but {} is from step {}; copy the checkpoint again",
                       files[i].path().string(), get_metadata_value(files[i], kStepKey),
                       files.front().path().filename().string(), step);
    }
  }
  return files;
}

std::string format_optimizer_file_pattern(const std::filesystem::path& trainer_state) {
  const auto files = find_optimizer_files(trainer_state);
  if (files.size() == 1) return files.front().string();
  return (trainer_state / fmt::format("optimizer-*-of-{:05}.safetensors", files.size())).string();
}

std::map<std::string, std::string> make_shard_metadata(int64_t rank, int64_t step) {
  return {{"format", "pt"}, {kShardKey, std::to_string(rank + 1)}, {kStepKey, std::to_string(step)}};
}

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
  spdlog::warn("{}: {} after the checkpoint was saved; the checkpoint is used {} it, and no run can resume from it",
               file.string(),
               error ? "was removed" : fmt::format("was changed from {} to {} bytes", saved.bytes, bytes),
               error ? "without" : "with");
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
