#include "fuzz/input.h"
#include "planner/protocol.h"
#include "vlmtrain/io/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto message = vlmtrain::io::json_of(vlmtrain::fuzz::text_of(data, size));
  if (!message || !message->is_object()) return 0;
  // The other side is this program: what does not fit is an error of JSON's or a sentence, never a crash.
  const auto read = [&]<class T>(const char* key, T) {
    if (!message->contains(key)) return;
    try {
      vlmtrain::fuzz::expect_taken_or_refused([&] { nlohmann::json(message->at(key).get<T>()); });
    } catch (const nlohmann::json::exception&) {
    }
  };
  read("job", vlmtrain::planner::Job{});
  read("request", vlmtrain::planner::RehearsalRequest{});
  read("twin_step", vlmtrain::planner::TwinStep{});
  return 0;
}
