#include "vlmtrain/models/weights_to_save.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <tuple>
#include <utility>

#include "models/adapters/adapter_tensors.h"
#include "models/adapters/auxiliary_files.h"
#include "models/adapters/output_module.h"
#include "models/checkpoints/companion_files.h"
#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/overflow.h"
#include "models/checkpoints/saved_tensors.h"
#include "models/checkpoints/weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

template <class File>
BaseWeights::Entry entry_of(std::shared_ptr<const File> file, const std::string& name) {
  return {.info = file->info(name),
          .read = [file, name] { return file->tensor(name); },
          .release = [file, name] { file->release(name); }};
}

/// Whether trained weights may have the type; an 8-bit one would lose what was learnt.
bool holds_weights(at::ScalarType dtype) {
  constexpr std::array kTypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  return std::ranges::find(kTypes, dtype) != kTypes.end();
}

bool is_trained(const nn::Parameter& parameter) {
  return parameter.tensor.requires_grad();
}

/// `dtype`, or fp32 where values would become infinite in it: that is logged.
at::ScalarType type_that_holds(const std::string& name, const at::Tensor& values, at::ScalarType dtype) {
  const std::string problem = overflow_problem(name, values, dtype);
  if (problem.empty()) return dtype;
  spdlog::warn("{}; it is saved in F32 (output.dtype=bf16 or fp32 holds all weights)", problem);
  return at::kFloat;
}

/// Of a parameter that keeps its values; undefined where they are not the base's.
std::function<at::Tensor()> from_base(const nn::Parameter& parameter, const BaseWeights::Entry* entry) {
  if (entry == nullptr) return {};
  if (parameter.sizes() == at::IntArrayRef(entry->info.shape)) return entry->read;
  if (!differ_in_rows(parameter, entry->info.shape)) return {};
  return [parameter, read = entry->read] { return with_rows_of(parameter, read()); };
}

}  // namespace

struct BaseWeights::Stamp {
  fs::path file;
  uintmax_t bytes = 0;
  fs::file_time_type written;

  static Stamp of(const fs::path& file) {
    std::error_code error;
    return {file, fs::file_size(file, error), fs::last_write_time(file, error)};
  }
};

BaseWeights::BaseWeights(fs::path folder, const fs::path& adapter) : folder_(std::move(folder)), dtype_(at::kFloat) {
  files_ = adapter.empty() ? read_companion_files(folder_) : auxiliary_files(folder_, adapter);
  files_["config.json"] = io::read_file(folder_ / "config.json");
  open_weights();
  if (!adapter.empty()) open_adapter(adapter);
}

BaseWeights::~BaseWeights() = default;

void BaseWeights::open_weights() {
  std::map<fs::path, std::shared_ptr<const io::CheckpointTensors>> opened;
  const auto open = [&](const fs::path& place) {
    auto& file = opened[place];
    if (file == nullptr) {
      file = std::make_shared<const io::CheckpointTensors>(place);
      opened_.push_back(file);
      stamp(place);
    }
    return file;
  };
  open(folder_);
  // For the names only.
  const auto model = build_model(folder_, at::kMeta, at::kFloat);
  std::map<at::ScalarType, int64_t> elements;
  for (const auto& parameter : own_parameters(*model)) {
    const auto place = model->weight_elsewhere(parameter.name);
    const auto file = open(place ? place->folder : folder_);
    const std::string name = place ? place->name : model->checkpoint_name(parameter.name);
    if (!file->contains(name)) continue;
    elements[file->info(name).dtype] += parameter.elements();
    own_.emplace(parameter.name, entry_of(file, name));
  }
  const auto most = std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
  if (most != elements.end() && holds_weights(most->first)) dtype_ = most->first;
}

void BaseWeights::open_adapter(const fs::path& adapter) {
  // For the names only.
  const auto model = build_model(folder_, at::kMeta, at::kFloat);
  const AdapterModules modules(*model, output_module(*model));
  const auto file = std::make_shared<const AdapterTensors>(adapter, &modules);
  stamp(adapter);
  for (const auto& name : file->names()) adapter_.emplace(name, entry_of(file, name));
}

void BaseWeights::stamp(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") stamps_.push_back(Stamp::of(entry.path()));
  }
}

void BaseWeights::put_chat_template(const std::string& jinja) {
  models::put_chat_template(jinja, files_);
}

void BaseWeights::put_end_token(int64_t id) {
  models::put_end_token(id, files_);
}

void BaseWeights::put_file(const std::string& name, const std::string& content) {
  if (content.empty()) {
    files_.erase(name);
  } else {
    files_[name] = content;
  }
}

const BaseWeights::Entry* BaseWeights::find(const nn::Parameter& parameter) const {
  if (parameter.goes_with_adapter()) {
    const auto found = adapter_.find(parameter.name);
    if (found != adapter_.end()) return &found->second;
  }
  const auto found = own_.find(parameter.name);
  return found == own_.end() ? nullptr : &found->second;
}

void BaseWeights::take(const BaseWeights& saved, const std::vector<nn::Parameter>& parameters) {
  for (const auto& parameter : parameters) {
    const Entry* const entry = saved.find(parameter);
    VLMTRAIN_CHECK(entry != nullptr, "{} has no {}", saved.folder_.string(), parameter.name);
    (parameter.goes_with_adapter() ? adapter_ : own_)[parameter.name] = *entry;
  }
}

bool BaseWeights::is_unchanged() const {
  return std::ranges::all_of(stamps_, [](const Stamp& stamp) {
    const Stamp now = Stamp::of(stamp.file);
    return now.bytes == stamp.bytes && now.written == stamp.written;
  });
}

at::ScalarType saved_dtype(const nn::Parameter& parameter, const SavedWeights& how) {
  const BaseWeights::Entry* entry = how.base->find(parameter);
  const at::ScalarType own = parameter.tensor.scalar_type();
  if (!is_trained(parameter) && parameter.goes_with_adapter()) return entry ? entry->info.dtype : own;
  if (how.dtype) return *how.dtype;
  if (entry == nullptr) return is_trained(parameter) ? how.base->dtype() : own;
  return !is_trained(parameter) || holds_weights(entry->info.dtype) ? entry->info.dtype : own;
}

io::LazyTensors tensors_to_save(const nn::ParameterStore& store, const std::vector<nn::Parameter>& parameters,
                                const SavedWeights& how,
                                const std::function<std::string(const nn::Parameter&)>& name_of) {
  const bool base_is_there = how.base->is_unchanged();
  bool needs_base = false;
  io::LazyTensors tensors;
  for (const nn::Parameter& parameter : parameters) {
    at::ScalarType dtype = saved_dtype(parameter, how);
    io::LazyTensor tensor{
        .name = name_of(parameter), .dtype = dtype, .shape = parameter.sizes().vec(), .make = {}, .written = {}};
    const BaseWeights::Entry* entry = how.base->find(parameter);
    const auto master = how.masters.find(parameter.name);
    if (is_trained(parameter) && !parameter.sharded) {
      dtype =
          type_that_holds(tensor.name, master != how.masters.end() ? master->second : parameter.tensor.detach(), dtype);
    } else if (const auto read = from_base(parameter, entry); read && base_is_there && !is_trained(parameter)) {
      if (dtype != entry->info.dtype) dtype = type_that_holds(tensor.name, read(), dtype);
    }
    tensor.dtype = dtype;
    const auto as_it_is = [&store, parameter, dtype] { return store.values_of(parameter).cpu().to(dtype); };
    if (is_trained(parameter) && parameter.sharded) {
      tensor.make = as_it_is;
    } else if (is_trained(parameter)) {
      // Let go once it is written: it may be a copy.
      const auto values =
          std::make_shared<at::Tensor>(master != how.masters.end() ? master->second : parameter.tensor.detach());
      tensor.make = [values, dtype] { return values->cpu().to(dtype); };
      tensor.written = [values] { values->reset(); };
    } else if (const auto read = from_base(parameter, entry); read && base_is_there) {
      tensor.make = [read, dtype] { return read().to(dtype); };
      tensor.written = entry->release;
    } else {
      needs_base |= static_cast<bool>(read);
      tensor.make = as_it_is;
    }
    tensors.push_back(std::move(tensor));
  }
  if (needs_base) {
    spdlog::warn(
        "{}: its weights have changed or are gone since the run began; what is frozen is saved as the model "
        "has it, in its precision",
        how.base->folder().string());
  }
  return tensors;
}

void restore_frozen(VisionLanguageModel& model, const fs::path& saved, const BaseWeights& base, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const io::CheckpointTensors tensors(saved);
  for (const auto& parameter : own_parameters(model)) {
    const std::string name = model.checkpoint_name(parameter.name);
    if (is_trained(parameter) || !tensors.contains(name)) continue;
    const at::ScalarType dtype = tensors.info(name).dtype;
    const BaseWeights::Entry* entry = base.find(parameter);
    if (dtype == (entry ? entry->info.dtype : parameter.tensor.scalar_type())) continue;
    if (const auto read = from_base(parameter, entry)) {
      parameter.set_values(read());
      entry->release();
    } else if (entry == nullptr) {
      draw_initial_values(parameter, seed);
    }
  }
}

}  // namespace vlmtrain::models
