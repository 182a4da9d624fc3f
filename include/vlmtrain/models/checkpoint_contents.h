#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::io {
class CheckpointTensors;  // io/checkpoint.h
}  // namespace vlmtrain::io

namespace vlmtrain::models {

/// The checkpoint that a run starts from, and its adapter if it goes on with one: what saved checkpoints take of it. It
/// is opened at the start, so that a base that is gone is known then, and stays open: its folder may be removed while
/// the run goes on, and frozen weights are then saved as the model has them. Not thread-safe.
class BaseWeights {
 public:
  /// A tensor of the base.
  struct Entry {
    io::TensorInfo info;
    std::function<at::Tensor()> read;  ///< over the file's pages, no copy
    std::function<void()> release;     ///< gives these pages back
  };

  /// `adapter`: empty without one. Throws UserError (kBadData) where files are missing or cannot be read.
  explicit BaseWeights(std::filesystem::path folder, const std::filesystem::path& adapter = {});
  ~BaseWeights();
  BaseWeights(const BaseWeights&) = delete;
  BaseWeights& operator=(const BaseWeights&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  /// config.json, tokenizer, processor and template files, by name, as they were at the start.
  const std::map<std::string, std::string>& files() const { return files_; }
  /// From now on they are those of a model that is trained with this chat template (Jinja): it is their only default.
  void set_chat_template(const std::string& jinja);
  /// From now on generation ends at this token too (eos_token_id of generation_config.json).
  void add_eos_token(int64_t id);
  /// From now on one of files() is this; empty: there is none of this name.
  void set_file(const std::string& name, const std::string& content);
  /// Where a parameter's values came from; null for what the base does not have.
  const Entry* find(const nn::Parameter& parameter) const;
  /// The files of weights: of the folder, then of others that the model takes weights of.
  const std::vector<std::shared_ptr<const io::CheckpointTensors>>& tensor_files() const { return tensor_files_; }
  /// That most of its elements have.
  at::ScalarType dtype() const { return dtype_; }
  /// From now on, that is where the values of `parameters` came from: they were trained, and are frozen now. REQUIRES:
  /// `saved` has them all.
  void override_entries(const BaseWeights& saved, const std::vector<nn::Parameter>& parameters);
  /// Whether the files of weights are still those that were opened.
  bool is_unchanged() const;

 private:
  struct FileStamp;

  void open_weights();
  void open_adapter(const std::filesystem::path& adapter);
  void record_stamps(const std::filesystem::path& folder);

  std::filesystem::path folder_;
  std::map<std::string, std::string> files_;
  std::map<std::string, Entry> model_entries_;    // by parameter
  std::map<std::string, Entry> adapter_entries_;  // the same, of what goes with an adapter
  std::vector<std::shared_ptr<const io::CheckpointTensors>> tensor_files_;
  std::vector<FileStamp> stamps_;
  at::ScalarType dtype_;
};

/// How a run's weights are saved: frozen ones as the base has them, to the bit; trained ones from their fp32 values, in
/// the base's type. What the base does not have, such as a new projector or LoRA's adapters, gets the type of most of
/// the base's weights.
struct SaveOptions {
  const BaseWeights* base;
  std::optional<at::ScalarType> dtype =
      std::nullopt;  ///< of all that is saved but frozen adapters; nothing: the base's
  std::map<std::string, at::Tensor> master_weights = {};  ///< fp32, by parameter, of what is trained
};

/// The type that a parameter is saved in.
at::ScalarType choose_save_dtype(const nn::Parameter& parameter, const SaveOptions& options);

/// A checkpoint or an adapter that is ready to be written, once, by any thread: what is read of then are the trained
/// values that it was given, frozen parameters, and the base's files.
struct CheckpointContents {
  std::vector<std::pair<std::string, std::string>> files;  ///< names and contents
  io::LazyTensors tensors;
  bool is_adapter = false;
  std::string base_fingerprint{};  ///< of an adapter's base (models/base_fingerprint.h); empty: not written

  /// Into the existing folder `out`. Errors as io/atomic.h.
  void write(const std::filesystem::path& out, int64_t max_shard_bytes) const;
};

/// A checkpoint that transformers loads: weights as `options` says, and config.json, tokenizer, processor and template
/// files as the base has them; the config's dtype is set where how.dtype is. Throws UserError (kUsage), which names
/// `out`, for quantised weights.
CheckpointContents make_checkpoint_contents(const VisionLanguageModel& model, const SaveOptions& options,
                                            const std::filesystem::path& out);

/// The adapters and the modules_to_save of a model with LoRA, with the base's tokenizer, processor and template files.
/// PEFT loads it.
CheckpointContents make_adapter_contents(const VisionLanguageModel& model, const SaveOptions& options);

/// Writes what make_checkpoint_contents() makes into the existing folder `out`.
void save_checkpoint(const VisionLanguageModel& model, const SaveOptions& options, const std::filesystem::path& out,
                     int64_t max_shard_bytes);

/// The same of make_adapter_contents().
void save_adapter(const VisionLanguageModel& model, const SaveOptions& options, const std::filesystem::path& out);

/// Gives the frozen weights of a model that was loaded from `saved` the values that they had at the run's start, where
/// they were saved in another type: they are the base's, or drawn from `seed`.
void restore_frozen_weights(VisionLanguageModel& model, const std::filesystem::path& saved, const BaseWeights& base,
                            uint64_t seed);

}  // namespace vlmtrain::models
