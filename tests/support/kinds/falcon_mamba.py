"""falcon_mamba, tiny."""

from kinds import Kind
from kinds.mamba import KIND as MAMBA

KIND = Kind(
    tiny=MAMBA.tiny | {"tie_word_embeddings": False},
    quirks={
        "plain": {},
        "as the 7B": {"expand": 16, "intermediate_size": 48},
        "biases, tied": {"use_bias": True, "tie_word_embeddings": True, "expand": 1, "mixer_rms_eps": 0.01},
        "short, rank of itself": {"conv_kernel": 2, "use_conv_bias": False, "layer_norm_epsilon": 0.01, "time_step_rank": "auto"},
    },
    dtypes=("plain", "biases, tied"),
    changes=(("plain", {"mixer_rms_eps": 1.1e-5}), ("plain", {"layer_norm_epsilon": 1.1e-5})),
    refused=(("plain", {"mixer_rms_eps": 0}, "mixer_rms_eps"), ("plain", {"ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg")),
)
