#include "train/resumption.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

Resumption resume_from(const std::filesystem::path& newest, const Config& config,
                       const nlohmann::ordered_json& fingerprint) {
  if (config.resume == Resume::kNever) {
    throw usage_error("output.dir: {} holds a run already ({}) and training.resume is never; choose another folder",
                      newest.parent_path().parent_path().string(), newest.filename().string());
  }
  Resumption resumption{.state = load_run_state(newest), .changes = {}};
  resumption.changes = changes_since(resumption.state.fingerprint, fingerprint);
  check_changes(resumption.changes, config.resume, newest);
  return resumption;
}

}  // namespace vlmtrain::train
