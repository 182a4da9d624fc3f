#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/engine/optimizer/adamw.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// The content of a checkpoint, which can be written once (RunCheckpoints::write). Each tensor is
/// released as soon as it is written.
struct CheckpointContent {
  int64_t step = 0;
  std::optional<int64_t> best_step;  ///< as of `step`
  models::CheckpointContents model;
  io::LazyTensors optimizer;
  std::string ledger, state;  ///< text of trainer_state/ledger.json and state.json
};

/// The memory that holds the values of trained parameters.
enum class ValueStorage {
  kInPlace,  ///< the parameters themselves; they must be written before the next step
  kCopied,   ///< copies in host memory, which another thread can write during training
};

/// Returns the checkpoint of a run. Weights have the base's data types (models/weights_to_save.h)
/// or `dtype`, as SaveOptions::dtype. trainer_state has the fp32 values of weights that are saved
/// with fewer bits, so that a resumed run has the same values. kCopied takes compute_copy_bytes()
/// of host memory, and throws what LibTorch throws if that fails.
CheckpointContent make_checkpoint_content(const RunState& state, const models::VisionLanguageModel& model,
                                          const engine::AdamW& optimizer, const data::Ledger& ledger,
                                          const models::BaseWeights& base, std::optional<at::ScalarType> dtype,
                                          ValueStorage values);

/// Returns the bytes of all values that training changes, each counted once.
int64_t compute_copy_bytes(const engine::AdamW& optimizer);

/// Returns the most bytes that writing takes in addition to the copies: one tensor in the type that
/// it is saved in.
int64_t compute_write_buffer_bytes(const models::VisionLanguageModel& model);

/// Returns the files of the optimizer's state in a folder trainer_state: optimizer.safetensors or,
/// of sharded states, optimizer-00001-of-00004.safetensors and so on. Throws UserError (kBadData)
/// that names a missing shard.
std::vector<std::filesystem::path> find_optimizer_files(const std::filesystem::path& trainer_state);

/// Opens the files of the optimizer's state. Throws UserError (kBadData) that names a shard of
/// another rank or another step than the first.
std::vector<io::SafetensorsFile> open_optimizer_files(const std::filesystem::path& trainer_state);

/// Returns the name of all shards together for error messages.
std::string format_optimizer_files_name(const std::filesystem::path& trainer_state);

/// Returns the metadata of a shard, which identifies its rank and step.
std::map<std::string, std::string> make_shard_metadata(int64_t rank, int64_t step);

/// Returns the file name of a shard; that of the only file if `count` is 1.
std::string make_optimizer_file_name(int64_t rank, int64_t count);

}  // namespace vlmtrain::train
