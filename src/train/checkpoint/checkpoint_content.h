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
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// The content of a checkpoint. It can be written only once (CheckpointManager::write), because
/// each tensor is released as soon as it is written.
struct CheckpointContent {
  int64_t step = 0;
  std::optional<int64_t> best_step;  ///< step of the best evaluation until `step`
  models::CheckpointContents model;
  io::LazyTensors optimizer;  ///< this rank's part of optimizer.safetensors
  std::string ledger, state;  ///< text of trainer_state/ledger.json and state.json
};

/// The memory that holds the values of trained parameters.
enum class ParameterValueStorage {
  kInPlace,  ///< the parameters themselves; they must be written before the next step
  kCopied,   ///< copies in host memory, which another thread can write during training
};

/// Returns the content of a run's checkpoint. Weights have `dtype` or, if it is nullopt, the data
/// types of the base checkpoint (models::choose_save_dtype). For weights that are saved with fewer
/// than 32 bits, trainer_state has the fp32 values, so that a resumed run is exact. `base` must
/// outlive the result, and with kInPlace `model` and `optimizer` as well. kCopied takes
/// compute_host_copy_bytes() of host memory, and throws LibTorch's error if the allocation fails.
CheckpointContent make_checkpoint_content(const RunState& state, const models::VisionLanguageModel& model,
                                          const engine::Optimizer& optimizer, const data::Ledger& ledger,
                                          const models::BaseWeights& base, std::optional<at::ScalarType> dtype,
                                          ParameterValueStorage values);

/// Returns the host memory of ParameterValueStorage::kCopied in bytes: master weights and optimizer
/// state, each tensor counted once.
int64_t compute_host_copy_bytes(const engine::Optimizer& optimizer);

/// Returns the maximum bytes that writing takes in addition to the copies: the largest parameter in
/// fp32.
int64_t compute_write_buffer_bytes(const models::VisionLanguageModel& model);

/// Returns the files of the optimizer's state in a folder trainer_state, in the order of ranks:
/// optimizer.safetensors, or the shards optimizer-00001-of-00004.safetensors and so on. Throws
/// UserError (kBadData), with its name, for a missing shard.
std::vector<std::filesystem::path> find_optimizer_files(const std::filesystem::path& trainer_state);

/// Opens the files of the optimizer's state. Throws UserError (kBadData), with its name, for a
/// missing or invalid file, and for a shard of another rank than its name says or of another step.
std::vector<io::SafetensorsFile> open_optimizer_files(const std::filesystem::path& trainer_state);

/// Returns a name for all files of the optimizer's state in error messages, for example
/// "…/optimizer-*-of-00004.safetensors".
std::string format_optimizer_file_pattern(const std::filesystem::path& trainer_state);

/// Returns the metadata of a shard, which identifies its rank and step.
std::map<std::string, std::string> make_shard_metadata(int64_t rank, int64_t step);

/// Returns the file name of the shard of `rank`, which counts from 0. If `num_shards` is 1, returns
/// "optimizer.safetensors".
std::string make_optimizer_file_name(int64_t rank, int64_t num_shards);

/// Checksums by path relative to a checkpoint's folder, for example "trainer_state/state.json".
using CheckpointChecksums = std::map<std::string, io::Checksum>;

/// Returns the checksums of the files that were written into `folder` during the life of
/// `recorder`.
CheckpointChecksums collect_checksums(const std::filesystem::path& folder, const io::ChecksumRecorder& recorder);

/// Returns the text of trainer_state/checksums.json: {"algorithm": "XXH64", "files": {path:
/// {"bytes": size, "xxh64": 16 hexadecimal digits}}}.
std::string format_checksums(const CheckpointChecksums& checksums);

/// Parses the output of format_checksums(). Throws UserError (kBadData), with `source`, for other
/// text.
CheckpointChecksums parse_checksums(const std::string& text, const std::string& source);

/// Writes trainer_state/checksums.json of `checkpoint`.
void write_checksums(const std::filesystem::path& checkpoint, const CheckpointChecksums& checksums);

/// Returns the checksums of a checkpoint; nullopt if it has none, like those of older versions.
/// Throws UserError (kBadData) for an invalid file.
std::optional<CheckpointChecksums> read_checksums(const std::filesystem::path& checkpoint);

/// The files whose contents are compared with their checksums.
enum class ChecksumVerificationScope {
  kSmallFiles,  ///< the sizes of all files, and the contents of small ones: JSON, templates
  kAllFiles,    ///< all contents; reads every file once, several at a time
  /// The contents of the model's or adapter's *.safetensors files. A missing file or one of another
  /// size is only a warning, because another program has replaced or removed it.
  kModelWeights,
};

/// Throws UserError (kBadData), with file and advice, if a file is missing or differs from its
/// checksum. Returns whether the checkpoint has checksums.
bool verify_checksums(const std::filesystem::path& checkpoint, ChecksumVerificationScope scope);

}  // namespace vlmtrain::train
