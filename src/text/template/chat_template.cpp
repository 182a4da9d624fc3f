#include "vlmtrain/text/chat_template.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "text/template/rendered_chat.h"
#include "text/template/template_probe.h"
#include "text/tokenizer/external_tokens.h"
#include "text/unicode/characters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::text {

namespace {

/// Returns `jinja_source` with `block` in place of each `placeholder`.
std::string replace_placeholder(std::string jinja_source, std::string_view placeholder, const std::string& block) {
  for (size_t pos = jinja_source.find(placeholder); pos != std::string::npos;
       pos = jinja_source.find(placeholder, pos + block.size())) {
    jinja_source.replace(pos, placeholder.size(), block);
  }
  return jinja_source;
}

/// Returns a built-in template with the markup of the model family for images and videos. Returns
/// other templates unchanged.
TemplateSource insert_family_markup(TemplateSource source, const TemplateSettings& settings) {
  if (source.end_of_turn_token.data() == nullptr) return source;  // not a built-in template
  if (settings.image_markup.block != kImagePlaceholder) {
    source.jinja_source =
        replace_placeholder(std::move(source.jinja_source), kImagePlaceholder, settings.image_markup.block);
  }
  if (!settings.video_markup.block.empty() && settings.video_markup.block != kVideoPlaceholder) {
    source.jinja_source =
        replace_placeholder(std::move(source.jinja_source), kVideoPlaceholder, settings.video_markup.block);
  }
  return source;
}

/// Returns the end of token `i`: the next greater start, because the byte tokens of one character
/// may share a start.
size_t find_token_end(const Encoding& encoding, size_t i, size_t text_size) {
  for (size_t next = i + 1; next < encoding.starts.size(); ++next) {
    if (encoding.starts[next] > encoding.starts[i]) return encoding.starts[next];
  }
  return text_size;
}

/// Calls `visit(token, answer)` with the indices of each label token and of its answer.
template <class Visit>
void visit_labels(const Encoding& encoding, std::string_view text, std::span<const TextSpan> answers,
                  const Visit& visit) {
  for (size_t i = 1; i < answers.size(); ++i) {
    VLMTRAIN_CHECK(answers[i - 1].end <= answers[i].begin, "answers {} and {} overlap", i - 1, i);
  }
  size_t next_answer_index = 0;
  for (size_t i = 0; i < encoding.starts.size(); ++i) {
    while (next_answer_index < answers.size() && answers[next_answer_index].end <= encoding.starts[i])
      ++next_answer_index;
    if (next_answer_index == answers.size()) break;
    const size_t start = encoding.starts[i], begin = answers[next_answer_index].begin;
    const bool reaches_into_answer = start < begin && start + count_leading_white_space(text.substr(start)) >= begin &&
                                     find_token_end(encoding, i, text.size()) > begin;
    if (begin <= start || reaches_into_answer) visit(i, next_answer_index);
  }
}

}  // namespace

/// A parsed template with its special tokens and the traits that the probe found.
struct ChatTemplate::Impl {
  Impl(TemplateSource source_, TemplateSettings settings_, const Tokenizer& tokenizer)
      : source(insert_family_markup(std::move(source_), settings_)),
        settings(std::move(settings_)),
        jinja_template(jinja::Template::parse(source.jinja_source, source.name)),
        traits(probe_template(jinja_template, source, settings, tokenizer)) {}

  TemplateSource source;
  TemplateSettings settings;
  jinja::Template jinja_template;
  TemplateTraits traits;
};

ChatTemplate::ChatTemplate(TemplateSource source, TemplateSettings settings, const Tokenizer& tokenizer)
    : impl_(std::make_shared<const Impl>(std::move(source), std::move(settings), tokenizer)) {}

const TemplateSource& ChatTemplate::source() const {
  return impl_->source;
}
const TemplateSettings& ChatTemplate::settings() const {
  return impl_->settings;
}
std::string_view ChatTemplate::end_of_turn_token() const {
  return impl_->traits.end_of_turn_token;
}
bool ChatTemplate::omits_last_end_of_turn() const {
  return impl_->traits.omits_last_end_of_turn;
}
bool ChatTemplate::writes_bos_token() const {
  return impl_->traits.writes_bos_token;
}

std::string ChatTemplate::describe() const {
  std::string text =
      fmt::format("chat template {}{}; ", impl_->source.name,
                  impl_->source.is_checkpoint_default ? ", the checkpoint's own"
                                                      : ", which saved checkpoints carry as chat_template.jinja");
  text +=
      impl_->traits.omits_last_end_of_turn
          ? fmt::format("it writes nothing after the last answer, so {} is appended", impl_->traits.end_of_turn_token)
          : fmt::format("an answer ends with {}", impl_->traits.end_of_turn_token);
  for (const std::string& note : impl_->traits.notes) text += "; " + note;
  return text;
}

RenderedChat ChatTemplate::render(std::span<const Turn> turns, bool add_generation_prompt,
                                  std::span<const io::TemplateValue> variables) const {
  if (turns.empty()) throw data_error("the conversation has no turns; give it a question and an answer, or drop it");
  const auto render_turns = [&](size_t num_turns, bool as_prompt) {
    return render_messages(impl_->jinja_template, turns.first(num_turns), impl_->traits.content_format, impl_->settings,
                           as_prompt, variables);
  };
  const auto render_text = [&](size_t num_turns, bool as_prompt) { return render_turns(num_turns, as_prompt).text; };
  return build_rendered_chat(render_turns(turns.size(), add_generation_prompt), turns,
                             /*ends_with_answer=*/!add_generation_prompt, impl_->traits, impl_->settings, variables,
                             render_text);
}

std::vector<char> compute_label_mask(const Encoding& encoding, std::string_view text,
                                     std::span<const TextSpan> answers) {
  std::vector<char> label_mask(encoding.ids.size(), 0);
  visit_labels(encoding, text, answers, [&](size_t token, size_t /*answer*/) { label_mask[token] = 1; });
  return label_mask;
}

std::vector<float> compute_label_weights(const Encoding& encoding, std::string_view text,
                                         std::span<const TextSpan> answers, std::span<const float> weights) {
  if (weights.empty()) return {};
  VLMTRAIN_CHECK(weights.size() == answers.size(), "{} weights for {} answers", weights.size(), answers.size());
  std::vector<float> label_weights(encoding.ids.size(), 0);
  visit_labels(encoding, text, answers, [&](size_t token, size_t answer) { label_weights[token] = weights[answer]; });
  return label_weights;
}

/// Returns the files of configs/chat_templates, embedded by cmake/EmbedResources.cmake.
const io::EmbeddedResources& resources();

namespace {

/// An entry of the table of built-in templates.
struct BuiltinTemplate {
  std::string_view name;
  std::string_view end_of_turn_token;  // empty if the template does not write one
};

/// The built-in templates in alphabetical order. Comments name the sources.
constexpr std::array kBuiltinTemplates{
    BuiltinTemplate{"chatml", "<|im_end|>"},
    BuiltinTemplate{"gemma3", "<end_of_turn>"},
    BuiltinTemplate{"gemma4", "<turn|>"},
    BuiltinTemplate{"internvl", "<|im_end|>"},            // OpenGVLab/InternVL3-*-hf
    BuiltinTemplate{"llava_1_5", ""},                     // llava-hf/llava-1.5-*
    BuiltinTemplate{"llava_qwen", "<|im_end|>"},          // LLaVA-NeXT, conversation.py: qwen_1_5
    BuiltinTemplate{"llava_v1", "</s>"},                  // LLaVA, conversation.py: vicuna_v1
    BuiltinTemplate{"mistral_instruct", "</s>"},          // LLaVA-Med 1.5, conversation.py
    BuiltinTemplate{"question_answer", "<|endoftext|>"},  // nanoVLM v0.1, data/datasets.py and collators.py
    BuiltinTemplate{"qwen2_vl", "<|im_end|>"},
    BuiltinTemplate{"smolvlm", "<end_of_utterance>"}};

namespace fs = std::filesystem;

constexpr const char* kDefaultTemplateName = "default";
constexpr const char* kTemplateKey = "chat_template";
constexpr const char* kJsonTemplateFileName = "chat_template.json";
constexpr const char* kJinjaTemplateFileName = "chat_template.jinja";
constexpr const char* kAdditionalTemplatesFolderName = "additional_chat_templates";

/// Returns a template that is not a built-in one.
TemplateSource make_template_source(std::string jinja_source, std::string name) {
  return {.jinja_source = std::move(jinja_source), .name = std::move(name)};
}

using TemplateMap = std::map<std::string, TemplateSource>;

/// Returns chat_template.jinja and the files of additional_chat_templates.
TemplateMap read_jinja_templates(const fs::path& folder) {
  TemplateMap templates;
  const auto add_template = [&templates](const std::string& name, const fs::path& file) {
    templates.insert_or_assign(name, make_template_source(io::read_file(file), file.string()));
  };
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / kAdditionalTemplatesFolderName, error)) {
    if (entry.path().extension() == ".jinja" && is_file(entry.path()))
      add_template(entry.path().stem().string(), entry.path());
  }
  if (is_file(folder / kJinjaTemplateFileName)) add_template(kDefaultTemplateName, folder / kJinjaTemplateFileName);
  return templates;
}

/// Returns the templates of the key chat_template: a string, a list of {name, template}, or an
/// object of names and templates.
std::map<std::string, TemplateSource> parse_json_templates(const nlohmann::json& json, const fs::path& path) {
  std::map<std::string, TemplateSource> templates;
  const std::string source = path.string();
  if (!json.is_object())
    throw data_error("{}: is {}, not an object; use the checkpoint's own file", source, io::make_json_excerpt(json));
  const auto value = json.value(kTemplateKey, nlohmann::json());
  const auto add_template = [&](const std::string& name, const nlohmann::json& text) {
    if (!text.is_string())
      throw data_error("{}: {} \"{}\" is not a string; use the checkpoint's own file", source, kTemplateKey, name);
    const std::string display_name = name == kDefaultTemplateName ? source : fmt::format("{} ({})", source, name);
    templates.insert_or_assign(name, make_template_source(text.get<std::string>(), display_name));
  };
  if (value.is_null()) return templates;
  if (value.is_array()) {
    for (const auto& entry : value) {
      add_template(io::get<std::string>(entry, "name", source), entry.value("template", nlohmann::json()));
    }
  } else if (value.is_object()) {
    for (const auto& [name, text] : value.items()) add_template(name, text);
  } else {
    add_template(kDefaultTemplateName, value);
  }
  return templates;
}

/// Returns the templates of a JSON file; none if the file does not exist.
TemplateMap read_json_templates(const fs::path& file) {
  return is_file(file) ? parse_json_templates(io::read_json(file), file) : TemplateMap();
}

/// Logs a warning for each default template in `template_maps` that differs from the selected one.
void warn_about_unused_templates(const TemplateMap& selected_templates, const std::vector<TemplateMap>& template_maps) {
  const auto default_template = selected_templates.find(kDefaultTemplateName);
  if (default_template == selected_templates.end()) return;
  for (const TemplateMap& template_map : template_maps) {
    const auto unused_template = template_map.find(kDefaultTemplateName);
    if (unused_template == template_map.end() ||
        default_template->second.jinja_source == unused_template->second.jinja_source)
      continue;
    warn_once(fmt::format(
        "{}: differs from the chat template in {}, which is used, as in transformers' processors; remove one of them",
        unused_template->second.name, default_template->second.name));
  }
}

/// Returns the ids of eos_token_id; none if it is malformed. Only generation needs the ids and
/// reports the error.
std::vector<int64_t> parse_eos_ids_or_empty(const nlohmann::json& config, const fs::path& file) {
  try {
    return parse_eos_token_ids(config, file.string());
  } catch (const UserError&) {
    return {};
  }
}

/// Appends the tokens of eos_token_id in `file`, at the top level and in text_config, to `tokens`.
void add_eos_tokens(const fs::path& file, const Tokenizer& tokenizer, std::vector<std::string>& tokens) {
  if (!is_file(file)) return;
  const auto json = io::read_json(file);
  for (const auto* config :
       {&json, json.is_object() && json.contains("text_config") ? &json["text_config"] : nullptr}) {
    if (config == nullptr) continue;
    for (const int64_t id : parse_eos_ids_or_empty(*config, file)) {
      std::string token(tokenizer.id_to_token(id));
      if (!token.empty() && std::ranges::count(tokens, token) == 0) tokens.push_back(std::move(token));
    }
  }
}

}  // namespace

std::vector<std::string_view> get_builtin_template_names() {
  std::vector<std::string_view> names;
  names.reserve(kBuiltinTemplates.size());
  for (const BuiltinTemplate& builtin : kBuiltinTemplates) names.push_back(builtin.name);
  return names;
}

TemplateSource get_builtin_template(std::string_view name) {
  const auto entry = std::ranges::find(kBuiltinTemplates, name, &BuiltinTemplate::name);
  if (entry == kBuiltinTemplates.end()) {
    throw usage_error("unknown chat template \"{}\"; available are {}", name,
                      fmt::join(get_builtin_template_names(), ", "));
  }
  return {.jinja_source = std::string(resources().at(std::string(name) + ".jinja")),
          .name = std::string(name),
          .end_of_turn_token = entry->end_of_turn_token};
}

std::vector<int64_t> parse_eos_token_ids(const nlohmann::json& config, const std::string& source) {
  const char* const key = "eos_token_id";
  const bool has_value = config.is_object() && config.contains(key) && !config[key].is_null();
  if (has_value && config[key].is_array()) return io::get<std::vector<int64_t>>(config, key, source);
  if (config.is_object() && !has_value) return {};
  return {io::get<int64_t>(config, key, source)};
}

std::map<std::string, TemplateSource> load_checkpoint_templates(const fs::path& folder) {
  // The order of ProcessorMixin.get_processor_dict in transformers 5.24. Checkpoints without a
  // processor have only the third source and tokenizer_config.json.
  std::vector<TemplateMap> template_maps;
  template_maps.push_back(read_json_templates(folder / "processor_config.json"));
  template_maps.push_back(read_json_templates(folder / kJsonTemplateFileName));
  if (template_maps.back().empty() && is_file(folder / kJsonTemplateFileName)) {
    throw data_error("{}: has no {}; download the file again", (folder / kJsonTemplateFileName).string(), kTemplateKey);
  }
  template_maps.push_back(read_jinja_templates(folder));
  const auto first_nonempty_template_map =
      std::ranges::find_if(template_maps, [](const TemplateMap& template_map) { return !template_map.empty(); });
  TemplateMap templates = first_nonempty_template_map != template_maps.end()
                              ? *first_nonempty_template_map
                              : read_json_templates(folder / "tokenizer_config.json");
  warn_about_unused_templates(templates, template_maps);
  if (first_nonempty_template_map != template_maps.end()) {
    // data.chat_template can select templates of all sources by name.
    for (const TemplateMap& template_map : template_maps) templates.insert(template_map.begin(), template_map.end());
  }
  // A single template is the default, whatever its name.
  if (templates.size() == 1 && !templates.contains(kDefaultTemplateName)) {
    auto single_template_node = templates.extract(templates.begin());
    single_template_node.key() = kDefaultTemplateName;
    templates.insert(std::move(single_template_node));
  }
  if (const auto default_template = templates.find(kDefaultTemplateName); default_template != templates.end())
    default_template->second.is_checkpoint_default = true;
  return templates;
}

TemplateSource choose_template(const std::string& name,
                               const std::map<std::string, TemplateSource>& checkpoint_templates,
                               std::string_view fallback) {
  const auto checkpoint_template = checkpoint_templates.find(name == "auto" ? kDefaultTemplateName : name);
  if (checkpoint_template != checkpoint_templates.end()) return checkpoint_template->second;
  if (name == "auto") {
    if (checkpoint_templates.empty()) return get_builtin_template(fallback);
    std::vector<std::string> names;
    names.reserve(checkpoint_templates.size());
    for (const auto& [template_name, source] : checkpoint_templates) names.push_back(template_name);
    throw usage_error("{}: the checkpoint has several chat templates and no default; choose one: {}",
                      keys::data::kChatTemplate, fmt::join(names, ", "));
  }
  if (name.ends_with(".jinja")) {
    if (!is_file(name))
      throw usage_error("{}: the file {} does not exist; check the path", keys::data::kChatTemplate, name);
    return make_template_source(io::read_file(name), name);
  }
  const auto builtin_names = get_builtin_template_names();
  if (std::ranges::find(builtin_names, name) != builtin_names.end()) return get_builtin_template(name);
  std::vector<std::string> names(builtin_names.begin(), builtin_names.end());
  for (const auto& [template_name, source] : checkpoint_templates) names.push_back(template_name);
  throw usage_error(
      "{}: unknown chat template \"{}\"; available are {}, auto for the checkpoint's own, and files ending in .jinja",
      keys::data::kChatTemplate, name, fmt::join(names, ", "));
}

void read_special_tokens(const fs::path& folder, const Tokenizer& tokenizer, TemplateSettings& settings) {
  settings.special_tokens_map = read_external_tokens(folder).named_tokens;
  for (const auto& [name, token] : settings.special_tokens_map) {
    if (name == "eos_token") settings.eos_tokens.push_back(token);
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    add_eos_tokens(folder / name, tokenizer, settings.eos_tokens);
  }
}

}  // namespace vlmtrain::text
