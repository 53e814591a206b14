"""config.json of models from 2018 to 2024 with biases or other heads than Llama's, as published, and our exact parameter counts.

BERT that fills blanks is without its pooler; Marian's bias of the logits is a parameter here, and its sinusoids are none.
"""

from typing import Any

BERT: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
    "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True,
    "vocab_size": 30522,
}  # fmt: skip
BERT_LARGE: dict[str, Any] = BERT | {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
BERT_CHINESE: dict[str, Any] = BERT | {
    "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "vocab_size": 21128,
}  # fmt: skip
MINILM: dict[str, Any] = BERT | {
    "_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"], "hidden_size": 384, "intermediate_size": 1536,
    "num_hidden_layers": 6, "transformers_version": "4.8.2",
}  # fmt: skip
OPENAI_GPT: dict[str, Any] = {
    "afn": "gelu", "architectures": ["OpenAIGPTLMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "openai-gpt", "n_ctx": 512, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 512, "n_special": 0, "predict_special_tokens": True, "resid_pdrop": 0.1, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 40478,
}  # fmt: skip
BLOOM_560M: dict[str, Any] = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"], "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 1024,
    "n_inner": None, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1,
    "seq_length": 2048, "skip_bias_add": True, "skip_bias_add_qkv": False, "transformers_version": "4.20.0", "unk_token_id": 0,
    "use_cache": True, "vocab_size": 250880,
}  # fmt: skip
BLOOM: dict[str, Any] = BLOOM_560M | {
    "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "pretraining_tp": 4, "slow_but_exact": False,
}  # fmt: skip
OPT_125M: dict[str, Any] = {
    "_name_or_path": "facebook/opt-125m", "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu",
    "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1,
    "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048,
    "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "prefix": "</s>",
    "torch_dtype": "float16", "transformers_version": "4.21.0.dev0", "use_cache": True, "vocab_size": 50272, "word_embed_proj_dim": 768,
}  # fmt: skip
OPT_350M: dict[str, Any] = OPT_125M | {
    "_name_or_path": "opt-350m", "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024, "num_attention_heads": 16,
    "num_hidden_layers": 24, "word_embed_proj_dim": 512,
}  # fmt: skip
OPT_67B: dict[str, Any] = OPT_125M | {
    "ffn_dim": 16384, "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "word_embed_proj_dim": 4096,
}  # fmt: skip
FALCON_7B: dict[str, Any] = {
    "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}, "bias": False, "bos_token_id": 11, "eos_token_id": 11,
    "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
    "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": True, "vocab_size": 65024,
}  # fmt: skip
FALCON_RW: dict[str, Any] = FALCON_7B | {
    "alibi": True, "bias": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 2048, "multi_query": False,
    "num_attention_heads": 32, "num_hidden_layers": 24, "parallel_attn": False, "vocab_size": 50304,
}  # fmt: skip
FALCON_40B: dict[str, Any] = FALCON_7B | {
    "hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
}  # fmt: skip
FALCON_11B: dict[str, Any] = FALCON_40B | {
    "activation": "gelu", "ffn_hidden_size": 16384, "hidden_size": 4096, "max_position_embeddings": 8192, "num_attention_heads": 32,
    "num_ln_in_parallel_attn": 1, "rope_scaling": None, "rope_theta": 500042.0, "tie_word_embeddings": False,
    "transformers_version": "4.39.2",
}  # fmt: skip
OPUS_EN_DE: dict[str, Any] = {
    "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False,
    "add_final_layer_norm": False, "architectures": ["MarianMTModel"], "attention_dropout": 0.0, "bad_words_ids": [[58100]],
    "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 512, "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0, "decoder_layers": 6, "decoder_start_token_id": 58100, "decoder_vocab_size": 58101,
    "dropout": 0.1, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layerdrop": 0.0, "encoder_layers": 6,
    "eos_token_id": 0, "forced_eos_token_id": 0, "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "init_std": 0.02,
    "is_encoder_decoder": True, "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, "max_length": 512,
    "max_position_embeddings": 512, "model_type": "marian", "normalize_before": False, "normalize_embedding": False, "num_beams": 6,
    "num_hidden_layers": 6, "pad_token_id": 58100, "scale_embedding": True, "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True, "transformers_version": "4.22.0.dev0", "use_cache": True, "vocab_size": 58101,
}  # fmt: skip

EARLY: dict[str, tuple[dict[str, Any], int]] = {
    "bert-base-uncased": (BERT, 109_514_298),
    "bert-large-uncased": (BERT_LARGE, 335_174_458),
    "bert-base-chinese": (BERT_CHINESE, 102_290_312),
    "all-minilm-l6-v2": (MINILM, 22_713_216),
    "openai-gpt": (OPENAI_GPT, 116_534_784),
    "bloom-560m": (BLOOM_560M, 559_214_592),
    "bloom": (BLOOM, 176_247_271_424),
    "opt-125m": (OPT_125M, 125_239_296),
    "opt-350m": (OPT_350M, 331_196_416),
    "opt-6.7b": (OPT_67B, 6_658_473_984),
    "falcon-rw-1b": (FALCON_RW, 1_311_625_216),
    "falcon-7b": (FALCON_7B, 6_921_720_704),
    "falcon-11b": (FALCON_11B, 11_102_822_400),
    "falcon-40b": (FALCON_40B, 41_303_293_952),
    "opus-mt-en-de": (OPUS_EN_DE, 73_944_309),
}
