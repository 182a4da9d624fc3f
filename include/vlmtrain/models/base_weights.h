#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::io {
class CheckpointTensors;  // io/checkpoint.h
}  // namespace vlmtrain::io

namespace vlmtrain::models {

/// The checkpoint that a run starts from, with the adapter that the run continues, if any. Saved
/// checkpoints take frozen weights and auxiliary files from it. All files are opened at
/// construction and stay open, so their folder may be removed during the run. Not thread-safe.
class BaseWeights {
 public:
  /// A tensor of the base. Keeps its file open, so it may outlive the BaseWeights.
  struct BaseTensor {
    io::TensorInfo info;
    std::function<at::Tensor()> read;  ///< returns a view of the mapped file, in the stored dtype
    std::function<void()> release;     ///< drops the mapped pages from memory; read() loads them again
  };

  /// Opens the checkpoint in `folder`. `adapter` is the folder of the adapter that the run
  /// continues; empty if there is none. Throws UserError (kBadData) if files are missing or
  /// unreadable.
  explicit BaseWeights(std::filesystem::path folder, const std::filesystem::path& adapter = {});
  ~BaseWeights();
  BaseWeights(const BaseWeights&) = delete;
  BaseWeights& operator=(const BaseWeights&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  /// Returns the contents of config.json and of the tokenizer, processor and template files, by
  /// name.
  const std::map<std::string, std::string>& files() const { return files_; }
  /// Makes `jinja` the only default chat template of files().
  void set_chat_template(const std::string& jinja);
  /// Adds a token to eos_token_id of generation_config.json in files(). Creates the file if it does
  /// not exist. Does nothing if it already lists the token.
  void add_eos_token(int64_t id);
  /// Sets the content of one of files(). Removes the file if `content` is empty.
  void set_file_content(const std::string& name, const std::string& content);
  /// Returns the tensor that a parameter was loaded from, owned by this object; null if the base
  /// has no such tensor. Parameters saved with an adapter are looked up in the adapter first.
  const BaseTensor* find_base_tensor(const nn::Parameter& parameter) const;
  /// Returns the tensors that the model does not read, but that saved checkpoints keep, by name.
  const std::map<std::string, BaseTensor>& passed_through_tensors() const { return passed_through_tensors_; }
  /// Returns the weight files: those of folder() first, then those of other folders that the model
  /// loads from.
  const std::vector<std::shared_ptr<const io::CheckpointTensors>>& tensor_files() const { return tensor_files_; }
  /// Returns the most frequent dtype of the base's elements; fp32 if trained weights cannot be
  /// saved in it.
  at::ScalarType dtype() const { return dtype_; }
  /// Replaces the tensors of `parameters` with those of `saved`. For parameters that training
  /// changed and then froze. REQUIRES: `saved` has a tensor for each parameter.
  void override_tensors(const BaseWeights& saved, const std::vector<nn::Parameter>& parameters);
  /// Returns whether size and modification time of all weight files are still those at
  /// construction.
  bool are_files_unchanged() const;

 private:
  struct FileState;

  void open_weight_files();
  void open_adapter_tensors(const std::filesystem::path& adapter);
  void record_file_states(const std::filesystem::path& folder);

  std::filesystem::path folder_;
  std::map<std::string, std::string> files_;
  std::map<std::string, BaseTensor> base_tensors_;     // by parameter name
  std::map<std::string, BaseTensor> adapter_tensors_;  // by parameter name, of parameters saved with an adapter
  std::map<std::string, BaseTensor> passed_through_tensors_;
  std::vector<std::shared_ptr<const io::CheckpointTensors>> tensor_files_;
  std::vector<FileState> file_states_;
  at::ScalarType dtype_;
};

/// Returns whether trained weights may be saved in `dtype`. 8-bit types would round away the
/// changes of training.
bool is_savable_dtype(at::ScalarType dtype);

/// Returns a fingerprint of a checkpoint's weights, 16 hexadecimal digits. It covers names, shapes
/// and dtypes of all tensors of the model and 1 KiB of each tensor's values, spread from its start
/// to its end. Checkpoints of another version, seed or fine-tuning have different fingerprints. A
/// change of a few values may go unnoticed. It does not depend on sharding, file dates or paths.
/// Throws UserError (kBadData) if `folder` is not a checkpoint.
std::string compute_base_fingerprint(const std::filesystem::path& folder);
std::string compute_base_fingerprint(const BaseWeights& base);

/// Returns the fingerprint of the base that an adapter was trained on, from the metadata of
/// adapter_model.safetensors; nothing if it has none, as in adapters of other programs.
std::optional<std::string> read_adapter_base_fingerprint(const std::filesystem::path& adapter);

/// Logs one warning if the adapter's fingerprint differs from that of `base`. Returns whether it
/// logged one; false if the adapter has no fingerprint.
bool warn_on_base_fingerprint_mismatch(const std::filesystem::path& adapter, const std::filesystem::path& base);

/// The metadata key of read_adapter_base_fingerprint().
inline constexpr const char* kBaseFingerprintKey = "vlmtrain_base_fingerprint";

}  // namespace vlmtrain::models
