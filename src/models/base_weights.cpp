#include "vlmtrain/models/base_weights.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "models/adapters/adapter_check.h"
#include "models/adapters/adapter_format.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/load_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

template <class File>
BaseWeights::BaseTensor make_base_tensor(std::shared_ptr<const File> file, const std::string& name) {
  return {.info = file->info(name),
          .read = [file, name] { return file->tensor(name); },
          .release = [file, name] { file->release(name); }};
}

// 1 KiB per tensor, so that a fingerprint of a 7B checkpoint reads some thousand pages instead of
// gigabytes. The pieces are spread from the start to the end of a tensor, so that overwriting one
// half changes the fingerprint. Changing a number invalidates the fingerprints of existing
// adapters.
constexpr size_t kHashedPiecesPerTensor = 4;
constexpr size_t kHashedPieceBytes = 256;

/// Adds the first bytes, the last bytes and evenly spaced pieces between them.
void hash_sampled_values(ContentHash& hash, const at::Tensor& tensor) {
  const std::string_view bytes(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  if (bytes.size() <= kHashedPiecesPerTensor * kHashedPieceBytes) {
    hash.add(bytes);
    return;
  }
  for (size_t piece = 0; piece < kHashedPiecesPerTensor; ++piece) {
    hash.add(
        bytes.substr((bytes.size() - kHashedPieceBytes) / (kHashedPiecesPerTensor - 1) * piece, kHashedPieceBytes));
  }
}

void hash_tensors(ContentHash& hash, const io::CheckpointTensors& tensors) {
  auto names = tensors.names();
  std::ranges::sort(names);
  for (const auto& name : names) {
    const io::TensorInfo& info = tensors.info(name);
    hash.add(name).add(c10::toString(info.dtype)).add(info.shape.size());
    for (const int64_t size : info.shape) hash.add(static_cast<uint64_t>(size));
    hash_sampled_values(hash, tensors.tensor(name));
    tensors.release(name);  // mapped pages count as this process's memory
  }
}

}  // namespace

bool is_savable_dtype(at::ScalarType dtype) {
  constexpr std::array kSavableDtypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  return std::ranges::find(kSavableDtypes, dtype) != kSavableDtypes.end();
}

struct BaseWeights::FileState {
  fs::path file;
  uintmax_t bytes = 0;
  fs::file_time_type modification_time;

  static FileState read(const fs::path& file) {
    std::error_code error;
    return {file, fs::file_size(file, error), fs::last_write_time(file, error)};
  }
};

BaseWeights::BaseWeights(fs::path folder, const fs::path& adapter) : folder_(std::move(folder)), dtype_(at::kFloat) {
  files_ = adapter.empty() ? read_auxiliary_files(folder_) : merge_auxiliary_files(folder_, adapter);
  files_["config.json"] = io::read_file(folder_ / "config.json");
  open_weight_files();
  if (!adapter.empty()) open_adapter_tensors(adapter);
}

BaseWeights::~BaseWeights() = default;

void BaseWeights::open_weight_files() {
  std::map<fs::path, std::shared_ptr<const io::CheckpointTensors>> files;
  const auto get_or_open_weights = [&](const fs::path& weights_folder) {
    auto& file = files[weights_folder];
    if (file == nullptr) {
      file = std::make_shared<const io::CheckpointTensors>(weights_folder);
      tensor_files_.push_back(file);
      record_file_states(weights_folder);
    }
    return file;
  };
  get_or_open_weights(folder_);
  // Only the names are needed, so the model is on the meta device.
  const auto model = build_model(folder_, at::kMeta, at::kFloat);
  std::map<at::ScalarType, int64_t> dtype_counts;
  for (const auto& parameter : get_base_parameters(*model)) {
    const auto external_weight = model->find_external_weight(parameter.name);
    const auto file = get_or_open_weights(external_weight ? external_weight->folder : folder_);
    const std::string name =
        external_weight ? external_weight->name : model->get_checkpoint_tensor_name(parameter.name);
    if (!file->contains(name)) continue;
    dtype_counts[file->info(name).dtype] += parameter.elements();
    base_tensors_.emplace(parameter.name, make_base_tensor(file, name));
  }
  const auto& weights = tensor_files_.front();
  for (const auto& name : weights->names()) {
    if (is_kept_untrained(name) || model->parameters().unread_tensor_names().contains(name))
      passed_through_tensors_.emplace(name, make_base_tensor(weights, name));
  }
  const auto most_common_dtype =
      std::ranges::max_element(dtype_counts, {}, [](const auto& entry) { return entry.second; });
  if (most_common_dtype != dtype_counts.end() && is_savable_dtype(most_common_dtype->first))
    dtype_ = most_common_dtype->first;
}

void BaseWeights::open_adapter_tensors(const fs::path& adapter) {
  // Only the names are needed, so the model is on the meta device.
  const auto model = build_model(folder_, at::kMeta, at::kFloat);
  const AdaptableModules modules(*model, find_output_module(*model));
  const auto file = std::make_shared<const AdapterTensors>(adapter, &modules);
  record_file_states(adapter);
  for (const auto& name : file->names()) adapter_tensors_.emplace(name, make_base_tensor(file, name));
}

void BaseWeights::record_file_states(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") file_states_.push_back(FileState::read(entry.path()));
  }
}

void BaseWeights::set_chat_template(const std::string& jinja) {
  models::set_chat_template(jinja, files_);
}

void BaseWeights::add_eos_token(int64_t id) {
  models::add_eos_token(id, files_);
}

void BaseWeights::set_file_content(const std::string& name, const std::string& content) {
  if (content.empty()) {
    files_.erase(name);
  } else {
    files_[name] = content;
  }
}

const BaseWeights::BaseTensor* BaseWeights::find_base_tensor(const nn::Parameter& parameter) const {
  if (parameter.is_saved_with_adapter()) {
    const auto it = adapter_tensors_.find(parameter.name);
    if (it != adapter_tensors_.end()) return &it->second;
  }
  const auto it = base_tensors_.find(parameter.name);
  return it == base_tensors_.end() ? nullptr : &it->second;
}

void BaseWeights::override_tensors(const BaseWeights& saved, const std::vector<nn::Parameter>& parameters) {
  for (const auto& parameter : parameters) {
    const BaseTensor* const entry = saved.find_base_tensor(parameter);
    VLMTRAIN_CHECK(entry != nullptr, "{} has no {}", saved.folder_.string(), parameter.name);
    (parameter.is_saved_with_adapter() ? adapter_tensors_ : base_tensors_)[parameter.name] = *entry;
  }
}

bool BaseWeights::are_files_unchanged() const {
  return std::ranges::all_of(file_states_, [](const FileState& recorded) {
    const FileState current = FileState::read(recorded.file);
    return current.bytes == recorded.bytes && current.modification_time == recorded.modification_time;
  });
}

std::string compute_base_fingerprint(const BaseWeights& base) {
  ContentHash hash;
  for (const auto& tensors : base.tensor_files()) hash_tensors(hash, *tensors);
  return hash.to_hex();
}

std::string compute_base_fingerprint(const std::filesystem::path& folder) {
  return compute_base_fingerprint(BaseWeights(folder));
}

std::optional<std::string> read_adapter_base_fingerprint(const std::filesystem::path& adapter) {
  const auto tensors = open_adapter_weights(adapter);
  const auto it = tensors.metadata().find(kBaseFingerprintKey);
  return it == tensors.metadata().end() ? std::nullopt : std::optional(it->second);
}

bool warn_on_base_fingerprint_mismatch(const std::filesystem::path& adapter, const std::filesystem::path& base) {
  const auto expected = read_adapter_base_fingerprint(adapter);
  if (!expected) return false;
  const std::string actual = compute_base_fingerprint(base);
  if (actual == *expected) return false;
  spdlog::warn(
      "{}: the adapter was trained on other weights than those of {} (fingerprints {} and {}); give the base that it "
      "was trained on",
      adapter.string(), base.string(), *expected, actual);
  return true;
}

}  // namespace vlmtrain::models
