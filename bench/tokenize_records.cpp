// Tokenizes the records of a data set with the chat template and the tokenizer of a checkpoint
// folder, like training. Writes one JSON object per line: {"template": …} or {"error"} for the
// folder, then {"text", "ids", "labels", "notices"} or {"error"} for each record. `labels` has 1 for
// each token in the loss. scripts/check_public_agents.py runs it.
//
//   tokenize_records CHECKPOINT DATA
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>
#include <string>
#include <vector>

#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/records.h"

namespace {

using namespace vlmtrain;
using Json = nlohmann::ordered_json;

void print_line(const Json& json) {
  std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

Json tokenize_record(const models::ChatEncoder& encoder, const io::Record& record) {
  if (!record.problem.empty()) return {{"error", record.problem}};
  try {
    const text::RenderedChat chat =
        encoder.render(record.id, record.turns, /*as_prompt=*/false, record.template_variables);
    const models::EncodedChat encoded = encoder.encode(chat, {});
    Json notices = Json::array();
    for (const io::Notice& notice : chat.notices) notices.push_back(notice.kind);
    return {{"text", chat.text},
            {"ids", encoded.token_ids},
            {"labels", std::vector<int>(encoded.label_mask.begin(), encoded.label_mask.end())},
            {"notices", std::move(notices)}};
  } catch (const data::SampleError& error) {
    return {{"error", error.what()}};
  }
}

void tokenize_records(const std::string& checkpoint, const std::string& data) {
  text::Tokenizer tokenizer = models::load_tokenizer(checkpoint);
  text::ChatTemplate chat_template =
      models::load_chat_template(checkpoint, tokenizer, models::ProcessorSettings{}, {.fallback = "chatml"});
  print_line({{"template", chat_template.describe()},
              {"end_of_turn", chat_template.end_of_turn_token()},
              {"omits_last_end_of_turn", chat_template.omits_last_end_of_turn()}});
  const models::ChatEncoder encoder(std::move(tokenizer), std::move(chat_template), models::ChatEncoderSettings{});
  const auto records = io::open_records(data, io::RecordSettings{});
  for (int64_t i = 0; i < records->size(); ++i) print_line(tokenize_record(encoder, records->at(i)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: tokenize_records CHECKPOINT DATA\n");
    return 2;
  }
  try {
    tokenize_records(argv[1], argv[2]);
    return 0;
  } catch (const UserError& error) {
    print_line({{"error", error.what()}});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 5;
  }
}
