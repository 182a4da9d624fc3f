#include "fuzz/checkpoint_folder.h"
#include "fuzz/input.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/saved_settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto folder = vlmtrain::fuzz::get_scratch_folder();
  std::filesystem::create_directories(folder / "trainer_state");
  vlmtrain::fuzz::write_file("trainer_state/state.json", vlmtrain::fuzz::to_text(data, size));
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const auto state = vlmtrain::train::load_run_state(folder);
    const auto changes = vlmtrain::train::find_setting_changes(state.fingerprint, {{"data.train", "a.json"}});
    vlmtrain::train::check_setting_changes(changes, vlmtrain::train::ResumePolicy::kAuto, folder);
  });
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    vlmtrain::data::Ledger::restore(
        vlmtrain::io::parse_ordered_json(vlmtrain::fuzz::to_text(data, size), "ledger.json"), "a.json",
        vlmtrain::data::SampleOrder(3, 1), {})
        .to_json();
  });
  return 0;
}
