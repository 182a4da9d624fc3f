#pragma once

#include <filesystem>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// The tensors of a file that Python's torch.save has written, in its order: of a dict from names to tensors (a
/// state_dict), or of one that lies in a dict under "model", "state_dict" or "model_state_dict". They are on the CPU,
/// and may share storage and be strided as they were.
///
/// No code of the file is run: of all that it may call only what makes tensors and dicts is known, and objects of other
/// classes that lie beside the tensors are passed over. data_error names the file and a remedy where it is not in the
/// zip format (torch.save before PyTorch 1.6), is damaged, has no dict of tensors, or where a Python class would be
/// needed for one of them.
NamedTensors read_torch_file(const std::filesystem::path& path);

}  // namespace vlmtrain::io
