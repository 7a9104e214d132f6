"""Images by FLUX.1-dev as in diffusers-torchao's table: BF16, 1024 x 1024, all parts on the card.

    images.py LABEL BATCH|model [fuse]

`model` is what the parts take before the first image. Two steps of denoising take the memory of 28.
"""
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

import figure


class Scheduler(FlowMatchEulerDiscreteScheduler):
    def index_for_timestep(self, timestep, schedule_timesteps=None):
        """The first step of a new image, which the original searches among values of the card."""
        return 0


def make_pipeline():
    """With the shapes of the published configurations: T5 1.1 XXL, CLIP ViT-L/14 and FLUX.1-dev's own parts."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        transformer = FluxTransformer2DModel(guidance_embeds=True)
        t5 = T5EncoderModel(T5Config(d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, vocab_size=32128,
                                     feed_forward_proj="gated-gelu"))
    clip = CLIPTextModel(CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12,
                                        num_hidden_layers=12, projection_dim=768, hidden_act="quick_gelu"))
    vae = AutoencoderKL(block_out_channels=(128, 256, 512, 512), latent_channels=16, layers_per_block=2,
                        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                        scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False,
                        sample_size=1024)
    torch.set_default_dtype(torch.float32)
    pipeline = FluxPipeline(scheduler=Scheduler(), vae=vae.cuda(), text_encoder=clip.cuda(),
                            tokenizer=None, text_encoder_2=t5.to_empty(device="cuda"), tokenizer_2=None,
                            transformer=transformer.to_empty(device="cuda"))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@torch.no_grad()
def encode(pipeline, batch):
    """The prompt's embeddings from both encoders, once for each image, as the pipeline repeats those of a prompt; no tokenizer is
    needed for tokens of the right number."""
    pooled = pipeline.text_encoder(torch.ones(1, 77, dtype=torch.long, device="cuda")).pooler_output
    sequence = pipeline.text_encoder_2(torch.ones(1, 512, dtype=torch.long, device="cuda"))[0]
    return {"prompt_embeds": sequence.repeat(batch, 1, 1), "pooled_prompt_embeds": pooled.repeat(batch, 1)}


def main(label, batch, *words):
    pipeline = make_pipeline()
    if "fuse" in words:
        pipeline.transformer.fuse_qkv_projections()
    if batch == "model":
        torch.cuda.reset_peak_memory_stats()
    else:
        for _ in range(2):
            pipeline(**encode(pipeline, int(batch)), num_inference_steps=2, guidance_scale=3.5, height=1024, width=1024)
    figure.report(label)


figure.measure_each(main)
