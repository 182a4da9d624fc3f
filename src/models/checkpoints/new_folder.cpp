#include "models/checkpoints/new_folder.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::models {

namespace fs = std::filesystem;

void prepare_output_folder(const fs::path& out) {
  if (out.empty()) throw usage_error("--out: is empty; name the new checkpoint's folder");
  if (fs::exists(out) && !(fs::is_directory(out) && fs::is_empty(out))) {
    throw usage_error("--out {}: exists already; give a new folder or remove it", out.string());
  }
  // "new/model/" is beside "new/other" too.
  const fs::path normalized = (out / "").parent_path();
  io::clean_up_temporaries(normalized.has_parent_path() ? normalized.parent_path() : fs::path("."));
}

}  // namespace vlmtrain::models
