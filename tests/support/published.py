"""config.json of famous models as their publishers wrote them, and their exact parameter counts."""

from typing import Any

from published_early import EARLY
from published_late import LATE

GPT2: dict[str, Any] = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
    "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
    "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}  # fmt: skip
LLAMA2: dict[str, Any] = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
LLAMA3: dict[str, Any] = LLAMA2 | {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "num_key_value_heads": 8, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0.dev0", "vocab_size": 128256,
}  # fmt: skip
LLAMA31: dict[str, Any] = LLAMA3 | {
    "eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072, "mlp_bias": False, "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
    "intermediate_size": 9728, "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config", "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    },
    "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06, "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False,
    "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": True,
    "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
DEEPSEEK_V32: dict[str, Any] = {k: v for k, v in DEEPSEEK_V3.items() if k not in ("auto_map", "pretraining_tp")} | {
    "architectures": ["DeepseekV32ForCausalLM"], "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
    "model_type": "deepseek_v32",
}  # fmt: skip
T5_SMALL: dict[str, Any] = {
    "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0,
    "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06,
    "model_type": "t5", "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True, "pad_token_id": 0,
    "relative_attention_num_buckets": 32, "vocab_size": 32128, "task_specific_params": {
        "translation_en_to_de": {"early_stopping": True, "max_length": 300, "num_beams": 4, "prefix": "translate English to German: "},
    },
}  # fmt: skip
FLAN_T5: dict[str, Any] = T5_SMALL | {
    "d_ff": 1024, "dense_act_fn": "gelu_new", "feed_forward_proj": "gated-gelu", "is_gated_act": True, "num_decoder_layers": 8,
    "num_heads": 6, "num_layers": 8, "relative_attention_max_distance": 128, "tie_word_embeddings": False,
    "transformers_version": "4.23.1", "use_cache": True,
}  # fmt: skip
GPT_OSS_20B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": 201088,
}  # fmt: skip
GPT_OSS_120B: dict[str, Any] = GPT_OSS_20B | {
    "layer_types": ["sliding_attention", "full_attention"] * 18, "num_hidden_layers": 36, "num_local_experts": 128,
}  # fmt: skip
MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
    "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
MISTRAL_NEMO: dict[str, Any] = MISTRAL | {
    "attention_dropout": 0.0, "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 128000, "num_hidden_layers": 40,
    "rope_theta": 1000000.0, "sliding_window": None, "transformers_version": "4.43.0.dev0", "vocab_size": 131072,
}  # fmt: skip
MIXTRAL: dict[str, Any] = MISTRAL | {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "model_type": "mixtral", "num_experts_per_tok": 2,
    "num_local_experts": 8, "output_router_logits": False, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
    "transformers_version": "4.36.0.dev0",
}  # fmt: skip
QWEN25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu",
    "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
    "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": True, "use_mrope": False, "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
QWEN25_SMALL: dict[str, Any] = QWEN25 | {
    "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "sliding_window": 32768, "tie_word_embeddings": True, "vocab_size": 151936,
}  # fmt: skip
QWQ: dict[str, Any] = {k: v for k, v in QWEN25.items() if k != "use_mrope"} | {
    "eos_token_id": 151645, "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 40960, "max_window_layers": 64,
    "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "sliding_window": 32768,
}  # fmt: skip
QWEN15_MOE: dict[str, Any] = QWQ | {
    "architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_size": 2048,
    "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21, "model_type": "qwen2_moe",
    "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 16, "output_router_logits": False, "rms_norm_eps": 1e-06,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632, "vocab_size": 151936,
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_235B: dict[str, Any] = QWEN3_MOE | {
    "hidden_size": 4096, "intermediate_size": 12288, "max_window_layers": 94, "moe_intermediate_size": 1536, "num_attention_heads": 64,
    "num_hidden_layers": 94,
}  # fmt: skip
DEEPSEEK_V2_LITE: dict[str, Any] = {
    k: v for k, v in DEEPSEEK_V3.items() if k not in ("ep_size", "num_nextn_predict_layers", "quantization_config")
} | {
    "architectures": ["DeepseekV2ForCausalLM"], "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
    "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
    "q_lora_rank": None, "rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy", "vocab_size": 102400,
}  # fmt: skip
DEEPSEEK_V2: dict[str, Any] = DEEPSEEK_V2_LITE | {
    "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_group": 8, "n_routed_experts": 160,
    "num_attention_heads": 128, "num_hidden_layers": 60, "num_key_value_heads": 128, "q_lora_rank": 1536, "routed_scaling_factor": 16.0,
    "topk_group": 3, "topk_method": "group_limited_greedy",
}  # fmt: skip
KIMI_K2: dict[str, Any] = DEEPSEEK_V3 | {
    "bos_token_id": 163584, "eos_token_id": 163585, "first_k_dense_replace": 1, "max_position_embeddings": 131072,
    "model_type": "kimi_k2", "n_group": 1, "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0, "rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0},
    "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "topk_group": 1, "vocab_size": 163840,
}  # fmt: skip
GLM45_AIR: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": [151329, 151336, 151338],
    "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408, "n_group": 1,
    "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 96, "num_experts_per_tok": 8,
    "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "pad_token_id": 151329,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000, "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False, "topk_group": 1, "torch_dtype": "bfloat16", "transformers_version": "4.54.0", "use_cache": True,
    "use_qk_norm": False, "vocab_size": 151552,
}  # fmt: skip
GLM45: dict[str, Any] = GLM45_AIR | {
    "first_k_dense_replace": 3, "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160,
    "num_hidden_layers": 92, "routed_scaling_factor": 2.5, "use_qk_norm": True,
}  # fmt: skip

GEMMA: dict[str, Any] = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1,
    "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 16384,
    "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
    "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    "transformers_version": "4.38.0.dev0", "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
GEMMA_7B: dict[str, Any] = GEMMA | {
    "hidden_size": 3072, "intermediate_size": 24576, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 16,
}  # fmt: skip
GEMMA2: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
    "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
    "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
GEMMA2_27B: dict[str, Any] = GEMMA2 | {
    "_attn_implementation": "eager", "head_dim": 128, "hidden_size": 4608, "intermediate_size": 36864, "num_attention_heads": 32,
    "num_hidden_layers": 46, "num_key_value_heads": 16, "query_pre_attn_scalar": 144,
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None,
    "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
    "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0", "use_cache": True, "vocab_size": 262144,
}  # fmt: skip
PHI3: dict[str, Any] = {
    "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.2", "use_cache": True, "vocab_size": 32064,
}  # fmt: skip
PHI4: dict[str, Any] = PHI3 | {
    "auto_map": {}, "bos_token_id": 100257, "eos_token_id": 100265, "hidden_size": 5120, "intermediate_size": 17920,
    "max_position_embeddings": 16384, "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
    "original_max_position_embeddings": 16384, "pad_token_id": 100349, "rope_theta": 250000, "sliding_window": None,
    "transformers_version": "4.47.0", "vocab_size": 100352,
}  # fmt: skip
PHI4_MINI: dict[str, Any] = PHI3 | {
    "bos_token_id": 199999, "eos_token_id": 199999, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False,
    "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 24, "num_key_value_heads": 8, "pad_token_id": 199999,
    "partial_rotary_factor": 0.75, "rope_scaling": {  # these factors stand in for the file's, as many
        "long_factor": [1.0 + i for i in range(48)], "short_factor": [1.0] * 48, "type": "longrope",
    },
    "sliding_window": 262144, "tie_word_embeddings": True, "transformers_version": "4.45.0", "vocab_size": 200064,
}  # fmt: skip
GLM: dict[str, Any] = {
    "architectures": ["GlmForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 13696,
    "max_position_embeddings": 131072, "model_type": "glm", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
    "pad_token_id": 151329, "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0.dev0", "use_cache": True, "vocab_size": 151552,
}  # fmt: skip
GLM4: dict[str, Any] = GLM | {
    "architectures": ["Glm4ForCausalLM"], "max_position_embeddings": 32768, "model_type": "glm4", "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05, "transformers_version": "4.52.0.dev0",
}  # fmt: skip

# The published config, and the parameters of the model: a tied table once, no buffers, no module that predicts a second token.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    **EARLY,
    **LATE,
    "gpt2": (GPT2, 124_439_808),
    "gpt2-medium": (GPT2 | {"n_embd": 1024, "n_layer": 24, "n_head": 16}, 354_823_168),
    "gpt2-large": (GPT2 | {"n_embd": 1280, "n_layer": 36, "n_head": 20}, 774_030_080),
    "gpt2-xl": (GPT2 | {"n_embd": 1600, "n_layer": 48, "n_head": 25, "output_past": True}, 1_557_611_200),
    "llama-2-7b": (LLAMA2, 6_738_415_616),
    "llama-3-8b": (LLAMA3, 8_030_261_248),
    "llama-3.1-8b": (LLAMA31, 8_030_261_248),
    "qwen3-4b": (QWEN3, 4_022_468_096),
    "deepseek-v3": (DEEPSEEK_V3, 671_026_404_352),
    "deepseek-v3.2": (DEEPSEEK_V32, 671_877_929_216),
    "t5-small": (T5_SMALL, 60_506_624),
    "flan-t5-small": (FLAN_T5, 76_961_152),
    "gpt-oss-20b": (GPT_OSS_20B, 20_914_757_184),
    "gpt-oss-120b": (GPT_OSS_120B, 116_829_156_672),
    "mistral-7b": (MISTRAL, 7_241_732_096),
    "mistral-nemo": (MISTRAL_NEMO, 12_247_782_400),
    "mixtral-8x7b": (MIXTRAL, 46_702_792_704),
    "qwen2.5-7b": (QWEN25, 7_615_616_512),
    "qwen2.5-0.5b": (QWEN25_SMALL, 494_032_768),
    "qwq-32b": (QWQ, 32_763_876_352),
    "qwen1.5-moe-a2.7b": (QWEN15_MOE, 14_315_784_192),
    "qwen3-30b-a3b": (QWEN3_MOE, 30_532_122_624),
    "qwen3-235b-a22b": (QWEN3_235B, 235_093_634_560),
    "deepseek-v2-lite": (DEEPSEEK_V2_LITE, 15_706_484_224),
    "deepseek-v2": (DEEPSEEK_V2, 235_741_434_880),
    "kimi-k2": (KIMI_K2, 1_026_408_209_408),
    "glm-4.5-air": (GLM45_AIR, 106_852_245_504),
    "glm-4.5": (GLM45, 352_797_814_784),
    "gemma-2b": (GEMMA, 2_506_172_416),
    "gemma-7b": (GEMMA_7B, 8_537_680_896),
    "gemma-2-2b": (GEMMA2, 2_614_341_888),
    "gemma-2-27b": (GEMMA2_27B, 27_227_128_320),
    "gemma-3-1b": (GEMMA3, 999_885_952),
    "phi-3-mini": (PHI3, 3_821_079_552),
    "phi-4": (PHI4, 14_659_507_200),
    "phi-4-mini": (PHI4_MINI, 3_836_021_760),
    "glm-4-9b": (GLM, 9_399_951_360),
    "glm-4-9b-0414": (GLM4, 9_400_279_040),
}
