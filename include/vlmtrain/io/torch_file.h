#pragma once

#include <filesystem>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// Returns the tensors of a file of Python's torch.save in its order. The file contains a dict from
/// names to tensors (a state_dict), or a dict that has one under "model", "state_dict" or
/// "model_state_dict". The tensors are on the CPU and keep their shared storage and strides.
///
/// Runs no code of the file: only calls that make tensors and dicts are known, and objects of other
/// classes next to the tensors are skipped. Throws data_error if the file is not in the zip format
/// (torch.save before PyTorch 1.6), is damaged, has no dict of tensors, or needs a Python class for
/// one of them.
NamedTensors read_torch_file(const std::filesystem::path& path);

}  // namespace vlmtrain::io
