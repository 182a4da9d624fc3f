#include "fuzz/checkpoint_folder.h"
#include "fuzz/input.h"
#include "vlmtrain/report/run_report.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first byte selects the file of the run that contains the rest.
  if (size == 0) return 0;
  constexpr const char* kFiles[] = {"metrics.jsonl", "events.jsonl",     "predictions.jsonl", "plan.json",
                                    "ledger.json",   "environment.json", "config.yaml"};
  const char* const name = kFiles[data[0] % std::size(kFiles)];
  vlmtrain::fuzz::write_file("config.yaml", "");
  vlmtrain::fuzz::write_file(name, vlmtrain::fuzz::to_text(data + 1, size - 1));
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    if (!vlmtrain::is_utf8(vlmtrain::report::render_run_report(vlmtrain::fuzz::get_scratch_folder()))) std::abort();
  });
  std::filesystem::remove(vlmtrain::fuzz::get_scratch_folder() / name);
  return 0;
}
