#include "vlmtrain/train/chat_template_date.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/today.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

namespace fs = std::filesystem;

void resolve_chat_template_date(data::DataOptions& data, const std::optional<fs::path>& checkpoint) {
  if (data.chat_template_date != "auto") return;
  std::error_code error;
  if (!checkpoint || !fs::exists(*checkpoint / "trainer_state" / "state.json", error)) {
    data.chat_template_date = current_date();
    return;
  }
  const std::string date = get_setting_text(load_run_state(*checkpoint).fingerprint, "data.chat_template_date");
  if (!date.empty()) data.chat_template_date = date;
}

void resolve_run_chat_template_date(data::DataOptions& data, const fs::path& run_dir) {
  try {
    resolve_chat_template_date(data, run_dir.empty() ? std::nullopt : find_newest_checkpoint(run_dir));
  } catch (const UserError&) {
    return;  // the run's start says what is wrong with the checkpoint
  } catch (const fs::filesystem_error&) {
    return;  // the same of the folder
  }
}

}  // namespace vlmtrain::train
