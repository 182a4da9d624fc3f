#pragma once

#include <filesystem>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// Returns the tensors of a file written by Python's torch.save, in the order of the file. The file
/// contains a dict of names to tensors (a state_dict), or a dict with a state_dict under "model",
/// "state_dict" or "model_state_dict". Entries of other types are skipped. The tensors are on the
/// CPU and keep their strides; tensors that share a storage in the file share it in memory.
///
/// Never runs code from the file: the reader implements only the calls that rebuild tensors and
/// dicts. Throws data_error if the file is not in the zip format (as written by torch.save before
/// PyTorch 1.6), is damaged, has no dict of tensors, or has a state_dict entry that only another
/// Python class can rebuild.
NamedTensors read_torch_file(const std::filesystem::path& path);

}  // namespace vlmtrain::io
