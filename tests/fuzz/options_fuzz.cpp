#include "fuzz/input.h"
#include "vlmtrain/base/options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    int64_t steps = 1;
    double rate = 1;
    bool quiet = false;
    std::string name;
    std::vector<std::string> files;
    vlmtrain::AutoOr<int64_t> micro_batch;
    const auto describe = [](const char* doc) {
      return vlmtrain::OptionInfo{.doc = doc, .resume = vlmtrain::ResumeRule::kFree};
    };
    vlmtrain::OptionTable table;
    table.set_section_description("run", "How it runs.");
    table.add("run.steps", steps, describe("Steps."), vlmtrain::at_least<int64_t>(1));
    table.add("run.rate", rate, describe("Rate."));
    table.add("run.quiet", quiet, describe("Quiet."));
    table.add("run.name", name, describe("Name."));
    table.add("run.files", files, describe("Files."));
    table.add("run.micro", micro_batch, describe("Samples."));
    table.add_enum("run.speed", quiet, {{"slow", false}, {"fast", true}}, describe("Speed."));
    const vlmtrain::fuzz::InputFile file(data, size);
    table.read(file.path(), {"run.name=" + std::string(vlmtrain::fuzz::to_text(data, std::min<size_t>(size, 100)))});
    const std::string resolved = table.to_yaml();
    if (!vlmtrain::is_utf8(resolved)) std::abort();
    // The resolved options must parse to the same options.
    const vlmtrain::fuzz::InputFile resolved_file(reinterpret_cast<const uint8_t*>(resolved.data()), resolved.size());
    table.read(resolved_file.path(), {});
    if (table.to_yaml() != resolved) std::abort();
  });
  return 0;
}
