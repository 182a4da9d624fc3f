#include "text/chat_table.h"

#include <array>

namespace vlmtrain::text {
namespace {

using Table = ChatTemplate::Table;

constexpr std::string_view kVicunaSystem =
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and "
    "polite answers to the user's questions.";

/// OpenAI's chat markup with bare texts.
constexpr Table kChatml{
    .name = "chatml",
    .opening = "",
    .default_system = "",
    .system_place = SystemPlace::kOwnTurn,
    .system = {"<|im_start|>system\n", "<|im_start|>system\n", "<|im_end|>\n"},
    .user = {"<|im_start|>user\n", "<|im_start|>user\n", "<|im_end|>\n"},
    .generation_prompt = "<|im_start|>assistant\n",
    .answer_begin = "",
    .answer_end = "<|im_end|>",
    .answer_after = "\n",
    .end_of_turn = "<|im_end|>",
    .image_place = ImagePlace::kInPlace,
    .image_text = kImageMark,
};

/// The chat template of llava-hf/llava-1.5-*.
constexpr Table kLlava15{
    .name = "llava_1_5",
    .opening = "",
    .default_system = "",
    .system_place = SystemPlace::kOwnTurn,
    .system = {"", "", " "},
    .user = {"USER: ", "USER: ", " "},
    .generation_prompt = "ASSISTANT:",
    .answer_begin = " ",
    .answer_end = "",
    .answer_after = " ",
    .end_of_turn = "",
    .image_place = ImagePlace::kFirst,
    .image_text = kImageMark,
};

/// What LLaVA-NeXT's training code writes for its version "qwen_1_5" (conversation.py, separator style CHATML).
constexpr Table kLlavaQwen{
    .name = "llava_qwen",
    .opening = "",
    .default_system = "You are a helpful assistant.",
    .system_place = SystemPlace::kOwnTurn,
    .system = {"<|im_start|>system\n", "<|im_start|>system\n", "<|im_end|>\n"},
    .user = {"<|im_start|>user\n", "<|im_start|>user\n", "<|im_end|>\n"},
    .generation_prompt = "<|im_start|>assistant\n",
    .answer_begin = "",
    .answer_end = "<|im_end|>",
    .answer_after = "\n",
    .end_of_turn = "<|im_end|>",
    .image_place = ImagePlace::kFirst,
    .image_text = kImageMark,
};

/// What LLaVA's training code writes for its version "v1" (conversation.py: vicuna_v1, separator style TWO).
constexpr Table kLlavaV1{
    .name = "llava_v1",
    .opening = "",
    .default_system = kVicunaSystem,
    .system_place = SystemPlace::kOwnTurn,
    .system = {"", "", " "},
    .user = {"USER: ", "USER: ", " "},
    .generation_prompt = "ASSISTANT:",
    .answer_begin = " ",
    .answer_end = "</s>",
    .answer_after = "",
    .end_of_turn = "</s>",
    .image_place = ImagePlace::kFirst,
    .image_text = kImageMark,
};

/// What LLaVA-Med 1.5 writes (conversation.py: mistral_instruct, separator style LLAMA_2).
constexpr Table kMistralInstruct{
    .name = "mistral_instruct",
    .opening = "",
    .default_system = "",
    .system_place = SystemPlace::kInsideUser,
    .system = {"<<SYS>>\n", "<<SYS>>\n", "\n<</SYS>>\n\n"},
    .user = {"[INST] ", "[INST] ", " [/INST]"},
    .generation_prompt = "",
    .answer_begin = " ",
    .answer_end = " </s>",
    .answer_after = "",
    .end_of_turn = "</s>",
    .image_place = ImagePlace::kFirst,
    .image_text = kImageMark,
};

/// The chat template of Qwen2-VL and Qwen2.5-VL.
constexpr Table kQwen2Vl{
    .name = "qwen2_vl",
    .opening = "",
    .default_system = "You are a helpful assistant.",
    .system_place = SystemPlace::kOwnTurn,
    .system = {"<|im_start|>system\n", "<|im_start|>system\n", "<|im_end|>\n"},
    .user = {"<|im_start|>user\n", "<|im_start|>user\n", "<|im_end|>\n"},
    .generation_prompt = "<|im_start|>assistant\n",
    .answer_begin = "",
    .answer_end = "<|im_end|>",
    .answer_after = "\n",
    .end_of_turn = "<|im_end|>",
    .image_place = ImagePlace::kInPlace,
    .image_text = "<|vision_start|><|image_pad|><|vision_end|>",
};

/// The chat template of SmolVLM and of Idefics3.
constexpr Table kSmolVlm{
    .name = "smolvlm",
    .opening = "<|im_start|>",
    .default_system = "",
    .system_place = SystemPlace::kOwnTurn,
    .system = {"System: ", "System:", "<end_of_utterance>\n"},
    .user = {"User: ", "User:", "<end_of_utterance>\n"},
    .generation_prompt = "Assistant:",
    .answer_begin = " ",
    .answer_end = "<end_of_utterance>",
    .answer_after = "\n",
    .end_of_turn = "<end_of_utterance>",
    .image_place = ImagePlace::kInPlace,
    .image_text = kImageMark,
};

/// What the first release of nanoVLM (v0.1, nanoVLM-222M) trains on: data/datasets.py and collators.py. It knows one
/// round without a system text.
constexpr Table kQuestionAnswer{
    .name = "question_answer",
    .opening = "",
    .default_system = "",
    .system_place = SystemPlace::kOwnTurn,
    .system = {"", "", " "},
    .user = {"Question: ", "Question: ", " "},
    .generation_prompt = "Answer:",
    .answer_begin = "",
    .answer_end = "<|endoftext|>",
    .answer_after = "",
    .end_of_turn = "<|endoftext|>",
    .image_place = ImagePlace::kInPlace,
    .image_text = kImageMark,
};

constexpr std::array kTables{kChatml,          kLlava15,        kLlavaQwen, kLlavaV1,
                             kMistralInstruct, kQuestionAnswer, kQwen2Vl,   kSmolVlm};

}  // namespace

std::span<const ChatTemplate::Table> chat_tables() {
  return kTables;
}

}  // namespace vlmtrain::text
