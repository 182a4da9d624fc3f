#include "fuzz/checkpoint_folder.h"
#include "fuzz/input.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto folder = vlmtrain::fuzz::scratch_folder();
  std::filesystem::create_directories(folder / "trainer_state");
  vlmtrain::fuzz::put("trainer_state/state.json", vlmtrain::fuzz::text_of(data, size));
  vlmtrain::fuzz::expect_taken_or_refused([&] {
    const auto state = vlmtrain::train::load_run_state(folder);
    const auto changes = vlmtrain::train::changes_since(state.fingerprint, {{"data.train", "a.json"}});
    vlmtrain::train::check_changes(changes, vlmtrain::train::Resume::kAuto, folder);
  });
  vlmtrain::fuzz::expect_taken_or_refused([&] {
    vlmtrain::data::Ledger::restore(
        vlmtrain::io::parse_ordered_json(vlmtrain::fuzz::text_of(data, size), "ledger.json"), "a.json", 3, {}, 0)
        .to_json();
  });
  return 0;
}
