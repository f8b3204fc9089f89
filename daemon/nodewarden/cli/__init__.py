"""`nodectl`: what people type. Talks to the agent, never to hardware; each verb loads only what it needs."""
