#include "app/commands/generate_input.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::app {

namespace {

/// Inserts `placeholder` before `text`, once per file, unless `text` already has one per file.
/// Throws UserError (kUsage) if it has another number of placeholders. `media_name` is a singular
/// noun for the message.
void insert_placeholders(std::string_view placeholder, std::string_view media_name, size_t num_files,
                         std::string& text) {
  size_t num_placeholders = 0;
  for (size_t position = text.find(placeholder); position != std::string::npos;
       position = text.find(placeholder, position + 1))
    ++num_placeholders;
  if (num_placeholders == 0) {
    for (size_t i = 0; i < num_files; ++i) text.insert(0, placeholder);
  } else if (num_placeholders != num_files) {
    throw usage_error("--prompt: has {} placeholders {} for {} {}s; give one for each, or none", num_placeholders,
                      placeholder, num_files, media_name);
  }
}

/// Appends the files of --volume to `record`, and sets the modalities of all its volumes from
/// --modality. Files of --image with the extension of a volume are volumes, too. Throws UserError
/// (kUsage).
void add_volumes(const GenerateArguments& arguments, io::Record& record) {
  for (const std::string& file : arguments.volumes) record.images.emplace_back(file).is_volume = true;
  const auto volumes = io::detect_volumes(record);
  if (volumes.size() > arguments.volumes.size() && !arguments.volumes.empty()) {
    throw usage_error("--image: {} is a volume; give all volumes with --volume, in the order of their placeholders",
                      volumes.front()->path);
  }
  const auto& modalities = arguments.modalities;
  if (modalities.empty()) return;
  if (volumes.empty()) throw usage_error("--modality: requires a volume; give the scan with --volume");
  if (io::try_assign_modalities(volumes, modalities)) return;
  throw usage_error("--modality: given {} times for {}; give one for all, or one for each", modalities.size(),
                    pluralize(std::ssize(volumes), "volume"));
}

/// Returns the index of the record with this id, else of the record at this position, from 1.
/// Returns 0 for an empty argument, and nothing if there is no such record.
std::optional<int64_t> find_record_index(const std::string& id_or_position, const io::Records& records) {
  if (id_or_position.empty()) return 0;
  for (int64_t index = 0; index < records.size(); ++index) {
    if (records.at_without_media_bytes(index).id == id_or_position) return index;
  }
  const auto index = parse_int_after_prefix("", id_or_position);
  return index && *index >= 1 && *index <= records.size() ? std::optional{*index - 1} : std::nullopt;
}

}  // namespace

void check_prompt_flags(const GenerateArguments& arguments) {
  const bool has_prompt_flags = !arguments.prompt.empty() || !arguments.system_prompt.empty() ||
                                !arguments.images.empty() || !arguments.videos.empty() || !arguments.volumes.empty() ||
                                !arguments.modalities.empty();
  if (!arguments.data.empty() && has_prompt_flags) {
    throw usage_error(
        "--data: the record contains the texts and media; omit --prompt, --system, --image, --video, --volume and "
        "--modality, or --data");
  }
  if (arguments.data.empty() && !arguments.record.empty())
    throw usage_error("--record: requires --data; give the file of conversations");
  if (arguments.data.empty() && arguments.prompt.empty()) {
    throw usage_error("--prompt: missing; give the question, or a file of conversations with --data");
  }
  for (const auto& [name, text] :
       {std::pair{"--prompt", &arguments.prompt}, std::pair{"--system", &arguments.system_prompt}}) {
    if (!is_utf8(*text)) throw usage_error("{}: not valid UTF-8; check the terminal's encoding", name);
  }
}

io::Record make_record(const GenerateArguments& arguments) {
  io::Record record;
  record.id = "prompt";
  record.images.assign(arguments.images.begin(), arguments.images.end());
  add_volumes(arguments, record);
  record.videos.assign(arguments.videos.begin(), arguments.videos.end());
  std::string text = arguments.prompt;
  insert_placeholders(io::kVideoPlaceholder, "video", arguments.videos.size(), text);
  insert_placeholders(io::kImagePlaceholder, arguments.volumes.empty() ? "image" : "volume", record.images.size(),
                      text);
  if (!arguments.system_prompt.empty()) record.turns.push_back({io::Role::kSystem, arguments.system_prompt});
  record.turns.push_back({io::Role::kUser, std::move(text)});
  return record;
}

io::Record load_record(const GenerateArguments& arguments, const io::RecordSettings& settings) {
  const auto records = train::open_nonempty_records(arguments.data, settings);
  const auto index = find_record_index(arguments.record, *records);
  if (!index) {
    throw usage_error("--record {}: {} has no record with this id; positions are 1 to {}", arguments.record,
                      arguments.data, records->size());
  }
  io::Record record = records->at(*index);
  if (!record.problem.empty()) throw data_error("{}: record {}: {}", arguments.data, record.id, record.problem);
  return record;
}

namespace {

data::Sample make_prompt_sample(const models::Processor& processor, const io::Record& record, bool ends_before_answer) {
  return ends_before_answer ? processor.process_prompt_headers(record, 0) : processor.process_headers(record, 0);
}

}  // namespace

std::string format_prompt(const models::Processor& processor, const io::Record& record, bool ends_before_answer) {
  const text::RenderedChat chat = processor.render(record, ends_before_answer);
  const std::string text = report::highlight_answers(chat);
  const data::Sample sample = make_prompt_sample(processor, record, ends_before_answer);
  std::string notices;
  for (const io::Notice& notice : chat.notices) notices += fmt::format("{}: {}\n", notice.kind, notice.example);
  return fmt::format("{}\n\n{} tokens, {} of which are image or video tokens; {} label tokens{}\n{}\n{}",
                     isatty(STDOUT_FILENO) == 1 ? to_printable_lines(text) : text, sample.tokens(),
                     sample.image_token_positions.size(), sample.label_tokens(),
                     ends_before_answer ? ", because this is a prompt" : ", between ⟦ and ⟧",
                     processor.chat_template().describe(), notices);
}

std::string format_prompt_json(const models::Processor& processor, const io::Record& record, bool ends_before_answer) {
  const text::RenderedChat chat = processor.render(record, ends_before_answer);
  const data::Sample sample = make_prompt_sample(processor, record, ends_before_answer);
  auto answer_spans = nlohmann::ordered_json::array();
  for (const text::TextSpan& answer : chat.answers) answer_spans.push_back({answer.begin, answer.end});
  const text::ChatTemplate& chat_template = processor.chat_template();
  nlohmann::ordered_json json{{"text", chat.text},
                              {"label_spans", answer_spans},
                              {"token_ids", sample.token_ids},
                              {"is_label", std::vector<int>(sample.label_mask.begin(), sample.label_mask.end())},
                              {"image_tokens", sample.image_token_positions.size()},
                              {"chat_template", chat_template.source().name},
                              {"end_of_turn", chat_template.end_of_turn_token()}};
  if (!chat.answer_weights.empty()) json["label_weights"] = chat.answer_weights;
  return io::to_json_string(json);
}

}  // namespace vlmtrain::app
