"""An ACP agent: editors drive retinue by the Agent Client Protocol."""
