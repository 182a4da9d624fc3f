#include "vlmtrain/models/checkpoint_contents.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <tuple>
#include <utility>

#include "models/adapters/adapter_format.h"
#include "models/adapters/lora_targets.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/load_weights.h"
#include "models/checkpoints/overflow.h"
#include "models/checkpoints/saved_tensors.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

template <class File>
BaseWeights::Entry make_entry(std::shared_ptr<const File> file, const std::string& name) {
  return {.info = file->info(name),
          .read = [file, name] { return file->tensor(name); },
          .release = [file, name] { file->release(name); }};
}

/// Whether trained weights may have the type; an 8-bit one would lose what was learnt.
bool is_weight_dtype(at::ScalarType dtype) {
  constexpr std::array kTypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  return std::ranges::find(kTypes, dtype) != kTypes.end();
}

bool is_trained(const nn::Parameter& parameter) {
  return parameter.tensor.requires_grad();
}

/// `dtype`, or fp32 where values would become infinite in it: that is logged.
at::ScalarType widen_on_overflow(const std::string& name, const at::Tensor& values, at::ScalarType dtype) {
  const std::string problem = describe_overflow(name, values, dtype);
  if (problem.empty()) return dtype;
  spdlog::warn("{}; it is saved in F32 (output.dtype=bf16 or fp32 holds all weights)", problem);
  return at::kFloat;
}

/// Of a parameter that keeps its values; undefined where they are not the base's.
std::function<at::Tensor()> find_base_reader(const nn::Parameter& parameter, const BaseWeights::Entry* entry) {
  if (entry == nullptr) return {};
  if (parameter.sizes() == at::IntArrayRef(entry->info.shape)) return entry->read;
  if (!differs_only_in_rows(parameter, entry->info.shape)) return {};
  return [parameter, read = entry->read] { return resize_rows(parameter, read()); };
}

}  // namespace

struct BaseWeights::FileStamp {
  fs::path file;
  uintmax_t bytes = 0;
  fs::file_time_type modified;

  static FileStamp read(const fs::path& file) {
    std::error_code error;
    return {file, fs::file_size(file, error), fs::last_write_time(file, error)};
  }
};

BaseWeights::BaseWeights(fs::path folder, const fs::path& adapter) : folder_(std::move(folder)), dtype_(at::kFloat) {
  files_ = adapter.empty() ? read_auxiliary_files(folder_) : merge_auxiliary_files(folder_, adapter);
  files_["config.json"] = io::read_file(folder_ / "config.json");
  open_weights();
  if (!adapter.empty()) open_adapter(adapter);
}

BaseWeights::~BaseWeights() = default;

void BaseWeights::open_weights() {
  std::map<fs::path, std::shared_ptr<const io::CheckpointTensors>> files;
  const auto open = [&](const fs::path& weights_folder) {
    auto& file = files[weights_folder];
    if (file == nullptr) {
      file = std::make_shared<const io::CheckpointTensors>(weights_folder);
      tensor_files_.push_back(file);
      record_stamps(weights_folder);
    }
    return file;
  };
  open(folder_);
  // For the names only.
  const auto model = build_model(folder_, at::kMeta, at::kFloat);
  std::map<at::ScalarType, int64_t> dtype_counts;
  for (const auto& parameter : get_base_parameters(*model)) {
    const auto weights_folder = model->external_weight(parameter.name);
    const auto file = open(external ? external->folder : folder_);
    const std::string name = external ? external->name : model->checkpoint_name(parameter.name);
    if (!file->contains(name)) continue;
    dtype_counts[file->info(name).dtype] += parameter.elements();
    model_entries_.emplace(parameter.name, make_entry(file, name));
  }
  const auto most_common = std::ranges::max_element(dtype_counts, {}, [](const auto& entry) { return entry.second; });
  if (most_common != dtype_counts.end() && is_weight_dtype(most_common->first)) dtype_ = most_common->first;
}

void BaseWeights::open_adapter(const fs::path& adapter) {
  // For the names only.
  const auto model = build_model(folder_, at::kMeta, at::kFloat);
  const AdapterModules modules(*model, find_output_module(*model));
  const auto file = std::make_shared<const AdapterTensors>(adapter, &modules);
  record_stamps(adapter);
  for (const auto& name : file->names()) adapter_entries_.emplace(name, make_entry(file, name));
}

void BaseWeights::record_stamps(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") stamps_.push_back(FileStamp::make(entry.path()));
  }
}

void BaseWeights::set_chat_template(const std::string& jinja) {
  models::set_chat_template(jinja, files_);
}

void BaseWeights::add_eos_token(int64_t id) {
  models::add_eos_token(id, files_);
}

void BaseWeights::set_file(const std::string& name, const std::string& content) {
  if (content.empty()) {
    files_.erase(name);
  } else {
    files_[name] = content;
  }
}

const BaseWeights::Entry* BaseWeights::find(const nn::Parameter& parameter) const {
  if (parameter.is_saved_with_adapter()) {
    const auto it = adapter_entries_.find(parameter.name);
    if (it != adapter_entries_.end()) return &it->second;
  }
  const auto it = model_entries_.find(parameter.name);
  return it == model_entries_.end() ? nullptr : &it->second;
}

void BaseWeights::override_entries(const BaseWeights& saved, const std::vector<nn::Parameter>& parameters) {
  for (const auto& parameter : parameters) {
    const Entry* const entry = saved.find(parameter);
    VLMTRAIN_CHECK(entry != nullptr, "{} has no {}", saved.folder_.string(), parameter.name);
    (parameter.is_saved_with_adapter() ? adapter_entries_ : model_entries_)[parameter.name] = *entry;
  }
}

bool BaseWeights::is_unchanged() const {
  return std::ranges::all_of(stamps_, [](const FileStamp& recorded) {
    const FileStamp current = FileStamp::make(recorded.file);
    return current.bytes == recorded.bytes && current.modified == recorded.modified;
  });
}

at::ScalarType choose_save_dtype(const nn::Parameter& parameter, const SaveOptions& options) {
  const BaseWeights::Entry* entry = options.base->find(parameter);
  const at::ScalarType model_dtype = parameter.tensor.scalar_type();
  if (!is_trained(parameter) && parameter.is_saved_with_adapter()) return entry ? entry->info.dtype : model_dtype;
  if (options.dtype) return *options.dtype;
  if (entry == nullptr) return is_trained(parameter) ? options.base->dtype() : model_dtype;
  return !is_trained(parameter) || is_weight_dtype(entry->info.dtype) ? entry->info.dtype : model_dtype;
}

io::LazyTensors make_lazy_tensors(const nn::ParameterStore& store, const std::vector<nn::Parameter>& parameters,
                                  const SaveOptions& options,
                                  const std::function<std::string(const nn::Parameter&)>& get_name) {
  const bool is_base_available = options.base->is_unchanged();
  bool needs_base = false;
  io::LazyTensors tensors;
  for (const nn::Parameter& parameter : parameters) {
    at::ScalarType dtype = choose_save_dtype(parameter, options);
    io::LazyTensor tensor{.name = get_name(parameter),
                          .dtype = dtype,
                          .shape = parameter.sizes().vec(),
                          .materialize = {},
                          .on_written = {}};
    const BaseWeights::Entry* entry = options.base->find(parameter);
    const auto master = options.master_weights.find(parameter.name);
    if (is_trained(parameter) && !parameter.sharded) {
      dtype = widen_on_overflow(
          tensor.name, master != options.master_weights.end() ? master->second : parameter.tensor.detach(), dtype);
    } else if (const auto read = find_base_reader(parameter, entry);
               read && is_base_available && !is_trained(parameter)) {
      if (dtype != entry->info.dtype) dtype = widen_on_overflow(tensor.name, read(), dtype);
    }
    tensor.dtype = dtype;
    const auto read_current = [&store, parameter, dtype] { return store.full_values(parameter).cpu().to(dtype); };
    if (is_trained(parameter) && parameter.sharded) {
      tensor.materialize = read_current;
    } else if (is_trained(parameter)) {
      // Let go once it is written: it may be a copy.
      const auto values = std::make_shared<at::Tensor>(
          master != options.master_weights.end() ? master->second : parameter.tensor.detach());
      tensor.materialize = [values, dtype] { return values->cpu().to(dtype); };
      tensor.on_written = [values] { values->reset(); };
    } else if (const auto read = find_base_reader(parameter, entry); read && is_base_available) {
      tensor.materialize = [read, dtype] { return read().to(dtype); };
      tensor.on_written = entry->release;
    } else {
      needs_base |= static_cast<bool>(read);
      tensor.materialize = read_current;
    }
    tensors.push_back(std::move(tensor));
  }
  if (needs_base) {
    spdlog::warn(
        "{}: its weights have changed or are gone since the run began; what is frozen is saved as the model "
        "has it, in its precision",
        options.base->folder().string());
  }
  return tensors;
}

void restore_frozen_weights(VisionLanguageModel& model, const fs::path& saved, const BaseWeights& base, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const io::CheckpointTensors tensors(saved);
  for (const auto& parameter : get_base_parameters(model)) {
    const std::string name = model.checkpoint_name(parameter.name);
    if (is_trained(parameter) || !tensors.contains(name)) continue;
    const at::ScalarType dtype = tensors.info(name).dtype;
    const BaseWeights::Entry* entry = base.find(parameter);
    if (dtype == (entry ? entry->info.dtype : parameter.tensor.scalar_type())) continue;
    if (const auto read = find_base_reader(parameter, entry)) {
      parameter.set_values(read());
      entry->release();
    } else if (entry == nullptr) {
      initialize_parameter(parameter, seed);
    }
  }
}

}  // namespace vlmtrain::models
