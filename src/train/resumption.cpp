#include "train/resumption.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

ResumePoint load_resume_point(const std::filesystem::path& checkpoint, const Config& config,
                              const nlohmann::ordered_json& fingerprint) {
  if (config.resume == ResumePolicy::kNever) {
    throw usage_error("output.dir: {} holds a run already ({}) and training.resume is never; choose another folder",
                      checkpoint.parent_path().parent_path().string(), checkpoint.filename().string());
  }
  ResumePoint resume_point{.state = load_run_state(checkpoint), .changes = {}};
  resume_point.changes = find_changes(resume_point.state.fingerprint, fingerprint);
  check_changes(resume_point.changes, config.resume, checkpoint);
  return resume_point;
}

}  // namespace vlmtrain::train
