#include "fuzz/input.h"
#include "vlmtrain/io/records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const vlmtrain::fuzz::InputFile file(data, size);
    for (const auto& record : vlmtrain::io::read_dataset(file.path())) {
      if (vlmtrain::to_printable(record.id) != record.id || vlmtrain::to_printable(record.task) != record.task)
        std::abort();
      const size_t min_turns = record.is_document() ? 1 : 2;
      if (record.location.empty() || (record.problem.empty() && record.turns.size() < min_turns)) std::abort();
      for (const auto& image : record.images) {
        if (record.problem.empty() && image.path.find('\0') != std::string::npos) std::abort();
      }
    }
  });
  return 0;
}
