#include "vlmtrain/text/read_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/captured_log.h"
#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::text {
namespace {

using io::message_of;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json token(const std::string& content) {
  return {{"content", content}, {"special", true}, {"normalized", false}, {"lstrip", false}, {"rstrip", false}};
}

/// A preset's tokenizer with other files next to it. Expected ids are those of AutoTokenizer of transformers 5.24.0 on
/// the same files.
class ReadTokenizer : public io::TemporaryFolderTest {
 protected:
  void use(const std::string& preset) {
    for (const auto& entry : std::filesystem::directory_iterator(folder())) std::filesystem::remove(entry.path());
    const auto source = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "configs/models" / preset;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) put(name, io::read_file(source / name));
  }
  template <class Change>
  void edit(const std::string& name, const Change& change) {
    auto file = json::parse(content_of(folder() / name));
    change(file);
    put(name, file.dump());
  }
  void config(const json& keys) {
    edit("tokenizer_config.json", [&keys](json& file) { file.update(keys); });
  }
  std::vector<int64_t> ids(const std::string& text = "a <ref> b") const {
    return read_tokenizer(folder()).encode(text).ids;
  }
  std::string refusal() const {
    return message_of([this] { read_tokenizer(folder()); });
  }
  std::string log() const {
    const CapturedLog captured;
    read_tokenizer(folder());
    return captured.text();
  }
};

TEST_F(ReadTokenizer, TokensThatTokenizerJsonLacks) {
  struct Family {
    const char* preset;
    int64_t next;
    std::vector<int64_t> around;
  };
  for (const auto& [preset, next, around] :
       {Family{"qwen2.5-vl-tiny", 607, {65, 221, 261}}, Family{"llava-tiny", 601, {67, 223, 262}}}) {
    const auto expect = [&, next = next, around = around](const char* how) {
      EXPECT_THAT(ids(), ElementsAre(around[0], around[1], next, around[2])) << how;
      use(preset);
    };
    use(preset);
    config({{"added_tokens_decoder", {{std::to_string(next), token("<ref>")}}}});
    expect("added_tokens_decoder");
    put("added_tokens.json", json{{"<ref>", next}}.dump());
    expect("added_tokens.json");
    config({{"extra_special_tokens", {"<ref>"}}});
    expect("extra_special_tokens");
    config({{"extra_special_tokens", {{"ref", "<ref>"}}}});
    expect("extra_special_tokens by name");
    config({{"additional_special_tokens", {"<ref>"}}});
    expect("additional_special_tokens");
    config({{"ref_token", "<ref>"}});
    expect("a name of the model's own");
    config({{"mask_token", "<ref>"}});
    expect("mask_token");
    put("special_tokens_map.json", json{{"mask_token", token("<ref>")}}.dump());
    expect("special_tokens_map.json");
    edit("tokenizer_config.json", [](json& file) { file.erase("additional_special_tokens"); });
    put("special_tokens_map.json", json{{"additional_special_tokens", {"<ref>"}}}.dump());
    expect("additional_special_tokens of special_tokens_map.json");
  }
}

TEST_F(ReadTokenizer, TokensGetTheirIdsInTransformersOrder) {
  use("qwen2.5-vl-tiny");
  config({{"added_tokens_decoder", {{"608", token("<q2>")}, {"607", token("<q1>")}}},
          {"mask_token", "<m>"},
          {"extra_special_tokens", {"<e>"}},
          {"ref_token", "<ref>"}});
  EXPECT_THAT(ids("<q1><q2><m><ref><e>"), ElementsAre(607, 608, 609, 610, 611));
  use("qwen2.5-vl-tiny");
  put("added_tokens.json", R"({"<ref2>": 608, "<ref>": 607})");
  EXPECT_THAT(ids("<ref><ref2>"), ElementsAre(607, 608));
  use("qwen2.5-vl-tiny");
  config({{"extra_special_tokens", {"<ref>", "<ref2>"}}});
  EXPECT_THAT(ids("<ref2><ref>"), ElementsAre(608, 607));
}

TEST_F(ReadTokenizer, PropertiesOfTheDecoderWin) {
  use("qwen2.5-vl-tiny");
  json stripping = token("<ref>");
  stripping["lstrip"] = true;
  config({{"added_tokens_decoder", {{"607", stripping}}}});
  EXPECT_THAT(ids(), ElementsAre(65, 607, 261));
  edit("tokenizer.json", [](json& file) {
    json own = token("<ref>");
    own["id"] = 607;
    file["added_tokens"].push_back(own);
  });
  EXPECT_THAT(ids(), ElementsAre(65, 607, 261));
  config({{"added_tokens_decoder", nullptr}});
  put("special_tokens_map.json", json{{"mask_token", stripping}}.dump());
  EXPECT_THAT(ids(), ElementsAre(65, 221, 607, 261));
}

TEST_F(ReadTokenizer, FilesThatAreNotReadNextToOthersAreNamed) {
  use("qwen2.5-vl-tiny");
  config({{"added_tokens_decoder", {{"607", token("<other>")}}}});
  put("added_tokens.json", R"({"<ref>": 608})");
  EXPECT_THAT(log(), AllOf(HasSubstr("added_tokens.json"), HasSubstr("<ref>"), HasSubstr("added_tokens_decoder")));
  EXPECT_THAT(ids("<other>"), ElementsAre(607));
  EXPECT_EQ(ids().size(), 7);
  put("added_tokens.json", "{}");
  put("special_tokens_map.json", R"({"mask_token": "<mask>"})");
  EXPECT_THAT(log(), AllOf(HasSubstr("special_tokens_map.json: mask_token"), HasSubstr("<mask>")));
  use("qwen2.5-vl-tiny");
  config({{"additional_special_tokens", {"<ref>"}}, {"extra_special_tokens", {"<ref2>"}}});
  EXPECT_THAT(log(), AllOf(HasSubstr("additional_special_tokens"), HasSubstr("<ref>")));
  EXPECT_THAT(ids("<ref2>"), ElementsAre(607));
}

TEST_F(ReadTokenizer, RefusesIdsThatTransformersDoesNotGive) {
  use("qwen2.5-vl-tiny");
  config({{"added_tokens_decoder", {{"700", token("<ref>")}}}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("added_tokens_decoder"), HasSubstr("\"<ref>\" the id 700"), HasSubstr("607")));
  use("llava-tiny");
  put("added_tokens.json", R"({"<ref>": 5})");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("added_tokens.json"), HasSubstr("\"<ref>\" the id 5"), HasSubstr("601")));
  use("llava-tiny");
  config({{"added_tokens_decoder", {{"x", token("<ref>")}}}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("added_tokens_decoder"), HasSubstr("\"x\"")));
}

TEST_F(ReadTokenizer, RefusesGapsInTheIdsOfAddedTokens) {
  const auto refusal_without = [this](const std::string& preset, const std::string& content) {
    use(preset);
    edit("tokenizer.json", [&](json& file) {
      auto& added = file["added_tokens"];
      const auto found = std::ranges::find_if(added, [&](const json& own) { return own["content"] == content; });
      ASSERT_NE(found, added.end());
      added.erase(found);
    });
    return refusal();
  };
  EXPECT_THAT(refusal_without("qwen2.5-vl-tiny", "<|vision_pad|>"),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("\"<|image_pad|>\" the id 605"), HasSubstr("give it 604")));
  EXPECT_THAT(refusal_without("gemma-3-tiny", "<end_of_turn>"), HasSubstr("without gaps"));
  EXPECT_THAT(refusal_without("internvl3-tiny", "<img>"), HasSubstr("without gaps"));
}

TEST_F(ReadTokenizer, SettingsThatChangeTokensAreUsedOrNamed) {
  use("qwen2.5-vl-tiny");
  config({{"split_special_tokens", true}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("split_special_tokens")));
  use("qwen2.5-vl-tiny");
  config({{"add_prefix_space", true}});
  EXPECT_THAT(log(), HasSubstr("add_prefix_space is true"));
  config({{"add_prefix_space", false}, {"fix_mistral_regex", true}, {"pre_merge", "x"}});
  EXPECT_THAT(log(), HasSubstr("fix_mistral_regex, pre_merge are not read"));
  use("qwen2.5-vl-tiny");
  config({{"auto_map", {{"AutoTokenizer", {"a.B", nullptr}}}}});
  EXPECT_THAT(log(), HasSubstr("auto_map"));
}

TEST_F(ReadTokenizer, AnIncompleteDecoderIsNamed) {
  use("qwen2.5-vl-tiny");
  edit("tokenizer_config.json", [](json& file) { file.erase("additional_special_tokens"); });
  config({{"tokenizer_class", "Qwen2Tokenizer"}, {"added_tokens_decoder", {{"601", token("<|im_end|>")}}}});
  EXPECT_THAT(log(), AllOf(HasSubstr("added_tokens_decoder lacks 6 tokens"), HasSubstr("Qwen2Tokenizer")));
}

TEST_F(ReadTokenizer, OrdinaryFilesGiveNoReport) {
  for (const char* const preset : {"qwen2.5-vl-tiny", "llava-tiny", "gemma-3-tiny", "internvl3-tiny", "smolvlm-tiny",
                                   "prs-med-tiny", "brain-llava-tiny", "nanovlm-tiny", "qwen3-vl-tiny"}) {
    use(preset);
    config({{"add_bos_token", true},
            {"legacy", false},
            {"clean_up_tokenization_spaces", true},
            {"add_prefix_space", nullptr},
            {"tokenizer_class", "LlamaTokenizerFast"}});
    EXPECT_THAT(log(), IsEmpty()) << preset;
  }
}

}  // namespace
}  // namespace vlmtrain::text
